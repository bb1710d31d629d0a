"""The service overview: what whoever is on call opens first."""

from __future__ import annotations

from grafana.board import Board, Line, Section
from grafana.boards.slo import objectives
from grafana.events import ALERT, ROLL_OUT, SCALE_DOWN, SCALE_UP
from grafana.links import RUNBOOKS, doc, drill_down, panel, runbook
from grafana.panels import Builder, Column, Note, lines, number, rows, states
from grafana.queries import (
    BY_POD,
    BY_SERVICE,
    POD,
    SERVICE,
    SERVICE_LEGEND,
    Query,
    of_hpa,
    quantiles,
    rate,
    wanted_replicas,
)

# NOTE: alerts on a pod or on Prometheus itself have no service or namespace; `|` keeps them.
_ALERTS = (
    'alertname=~"PagedServe.+",alertstate="firing",namespace=~"$namespace|",inferenceservice=~"$inferenceservice|"'
)
_PENDING_OR_FIRING = _ALERTS.replace('alertstate="firing",', "")
_REASONS = {"stop": "green", "length": "blue", "abort": "yellow", "error": "red"}
ENGINE_UP = {0: ("loading or down", "orange"), 1: ("takes requests", "green")}


def _firing() -> Builder:
    return number(
        1,
        "Firing alerts",
        "none",
        Note(
            "Alerts of pagedserve that fire now, of the services chosen and of those that name none.",
            "0.",
            "the table below has them with their runbooks. It reads Prometheus' own ALERTS, so it needs no "
            "Alertmanager.",
        ),
        # NOTE: without any alert there is no series at all, and that is a 0 and not missing data.
        [Query(f'count(ALERTS{{{_ALERTS},severity!="info"}}) or vector(0)', "firing")],
        steps=((None, "green"), (1, "red")),
        filled=True,
        decimals=0,
    )


def _replicas_now() -> Builder:
    return number(
        2,
        "Replicas that take requests",
        "none",
        Note(
            "Engines that take requests, over the services chosen, and how many the Deployments want.",
            "both are equal. Fewer for a while means that pods load; at 0 every request is refused.",
            "the panel Replicas below, then the dashboard Autoscaling for why that many are wanted.",
        ),
        [
            Query(f"sum(inferenceservice:pagedserve_engines_up:sum{{{SERVICE}}})", "ready"),
            Query(f"sum({wanted_replicas()})", "wanted"),
        ],
        steps=((None, "red"), (1, "green")),
        decimals=0,
        spark=False,
        links=[runbook("PagedServeEngineDown"), runbook("PagedServeNoReplicas")],
    )


def _headline() -> list[Builder]:
    return [
        _firing(),
        _replicas_now(),
        number(
            3,
            "Requests",
            "reqps",
            Note(
                "Requests that ended, a second, over five minutes.",
                "what is usual at this hour.",
                "a sudden drop with waiting requests is a stuck or overloaded engine; without, the traffic stays away.",
            ),
            [Query(f"sum(inferenceservice:pagedserve_requests:rate5m{{{SERVICE}}})", "requests")],
        ),
        number(
            4,
            "Generated tokens",
            "none",
            Note(
                "Tokens generated a second, over five minutes: the work that the service delivers.",
                "follows the requests.",
                "the dashboard Engine splits it by pod.",
            ),
            [Query(f"sum(inferenceservice:pagedserve_generation_tokens:rate5m{{{SERVICE}}})", "tokens/s")],
            links=[panel("Engine", 10, "Engine: tokens a second")],
        ),
        number(
            5,
            "Waiting",
            "none",
            Note(
                "Sequences that wait for a place in a batch, over all replicas.",
                "0 most of the time; short bursts are normal where prompts are long.",
                "Saturation below: with a full KV cache scale out, with an empty one prompts are the bottleneck.",
            ),
            [Query(f"sum(inferenceservice:pagedserve_requests_waiting:sum{{{SERVICE}}})", "waiting")],
            steps=((None, "green"), (1, "yellow"), (50, "red")),
            decimals=0,
            links=[runbook("PagedServeSaturated")],
        ),
        number(
            6,
            "KV cache, fullest service",
            "percentunit",
            Note(
                "KV blocks held by sequences, averaged over the replicas of a service; the fullest service chosen.",
                "below 80 %. Above 90 % with a growing queue PagedServeSaturated fires.",
                "Saturation below, and KV cache on the dashboard Engine.",
            ),
            [Query(f"max(inferenceservice:pagedserve_kv_cache_usage_ratio:avg{{{SERVICE}}})", "used")],
            steps=((None, "green"), (0.8, "yellow"), (0.9, "red")),
            decimals=0,
            links=[runbook("PagedServeSaturated"), panel("Engine", 40, "Engine: KV blocks by state")],
        ),
        number(
            7,
            "Refused, worst service",
            "percentunit",
            Note(
                "Requests refused for want of room or of an engine, of all that came, over five minutes; the "
                "worst service.",
                "0. Above 1 % PagedServeRejects fires.",
                "Refused requests by reason, below.",
            ),
            [Query(f"max(inferenceservice:pagedserve_requests_rejected:ratio_rate5m{{{SERVICE}}})", "refused")],
            steps=((None, "green"), (0.001, "yellow"), (0.01, "red")),
            decimals=1,
            links=[runbook("PagedServeRejects")],
        ),
    ]


def _alert_table() -> Builder:
    return rows(
        8,
        "Alerts",
        Note(
            "What fires now, and for how long. The name leads to its runbook.",
            "empty.",
            "the runbook; then the row of this dashboard that the alert is about.",
        ),
        [
            Query(
                "max by (alertname, severity, namespace, inferenceservice, pod) (\n"
                f"  time() - ALERTS_FOR_STATE{{{_PENDING_OR_FIRING}}}\n"
                f"  and ignoring (alertstate) ALERTS{{{_ALERTS}}}\n)",
                instant=True,
                format="table",
            )
        ],
        [
            Column(
                "alertname",
                "Alert",
                link={"title": "Runbook", "url": f"{RUNBOOKS}${{__value.raw}}.md", "targetBlank": True},
            ),
            Column("severity", "Severity", width=90),
            Column("namespace", "Namespace", width=110),
            Column("inferenceservice", "Service", width=110),
            Column("pod", "Pod"),
            Column("Value", "Since", unit="s", width=90, decimals=0),
        ],
        sort="Severity",
        no_value="No alert fires",
        links=[doc("monitoring.md", "All alerts")],
    )


def _traffic() -> Section:
    return Section(
        102,
        "Traffic and errors",
        [
            Line(
                8,
                [
                    lines(
                        30,
                        "Requests by how they ended",
                        "reqps",
                        Note(
                            "Requests a second by finish reason: stop (the model or a stop string ended it), "
                            "length (its "
                            "limit), abort (the client went away), error (ours).",
                            "no error; aborts are few and steady.",
                            "errors: the log of the pod that has them. Many aborts: clients lose patience, see "
                            "latency.",
                        ),
                        [
                            Query(
                                rate("pagedserve_requests_total", "finish_reason"),
                                "{{finish_reason}}",
                            )
                        ],
                        stacked=True,
                        colors=_REASONS,
                        links=[runbook("PagedServeErrorSLOBurn")],
                    ),
                    lines(
                        31,
                        "Refused requests by reason",
                        "reqps",
                        Note(
                            "Requests answered 429 or 503 before they reached an engine.",
                            "nothing. waiting_requests and waiting_tokens: the queue is at its bound; loading "
                            "and draining: "
                            "traffic reaches pods that are not ready; dead: an engine is lost.",
                            "Saturation below for a full queue, Replicas for the others.",
                        ),
                        [Query(rate("pagedserve_requests_rejected_total", "reason"), "{{reason}}")],
                        stacked=True,
                        links=[runbook("PagedServeRejects")],
                    ),
                    lines(
                        32,
                        "Tokens a second",
                        "none",
                        Note(
                            "Tokens generated, and prompt tokens of the requests that ended.",
                            "follow the requests; generated tokens level off when the replicas are full.",
                            "the dashboard Engine for the same by pod, and for steps and batches.",
                        ),
                        [
                            Query(
                                rate("pagedserve_generation_tokens_total", BY_SERVICE),
                                f"{SERVICE_LEGEND} generated",
                            ),
                            Query(rate("pagedserve_prompt_tokens_total", BY_SERVICE), f"{SERVICE_LEGEND} prompt"),
                        ],
                        links=[panel("Engine", 10, "Engine: tokens a second")],
                    ),
                ],
            ),
            Line(
                8,
                [
                    lines(
                        33,
                        "Time to first token",
                        "s",
                        Note(
                            "From a request's arrival to its first token.",
                            "p95 below 2.5 s, the objective (line).",
                            "Time in the queue below: if it has the time, scale out; if not, prompts are long or "
                            "uncached.",
                        ),
                        quantiles("pagedserve_time_to_first_token_seconds"),
                        steps=((None, "green"), (2.5, "red")),
                        links=[runbook("PagedServeFirstTokenSLOBurn"), panel("Engine", 60, "Engine: heatmap")],
                    ),
                    lines(
                        34,
                        "Time between tokens",
                        "s",
                        Note(
                            "Between two tokens of a sequence: what a reader of a stream sees.",
                            "p99 below 0.25 s, the objective (line).",
                            "Step time on Engine: long steps come from prefill of others, large batches or a "
                            "throttled CPU.",
                        ),
                        quantiles("pagedserve_inter_token_latency_seconds"),
                        steps=((None, "green"), (0.25, "red")),
                        links=[runbook("PagedServeInterTokenSLOBurn"), panel("Engine", 30, "Engine: step time")],
                    ),
                    lines(
                        35,
                        "Request duration",
                        "s",
                        Note(
                            "From arrival to the end, aborted requests among them.",
                            "steady for a steady mix of requests: it follows the number of tokens asked for.",
                            "lengths of prompts and answers on Engine.",
                        ),
                        quantiles("pagedserve_request_duration_seconds"),
                        links=[panel("Engine", 72, "Engine: lengths of answers")],
                    ),
                ],
            ),
        ],
    )


def _saturation() -> Section:
    return Section(
        103,
        "Saturation",
        [
            Line(
                8,
                [
                    lines(
                        40,
                        "Running and waiting",
                        "none",
                        Note(
                            "Sequences in the batches, and those that wait for a place.",
                            "waiting near 0. It grows with running at its bound (--max_num_seqs) or with a full "
                            "KV cache.",
                            "the KV cache beside; if it has room, the token budget of a step is the bottleneck "
                            "(Engine).",
                        ),
                        [
                            Query(
                                f"inferenceservice:pagedserve_requests_running:sum{{{SERVICE}}}",
                                f"{SERVICE_LEGEND} running",
                            ),
                            Query(
                                f"inferenceservice:pagedserve_requests_waiting:sum{{{SERVICE}}}",
                                f"{SERVICE_LEGEND} waiting",
                            ),
                        ],
                        links=[runbook("PagedServeSaturated"), panel("Autoscaling", 20, "Autoscaling: requests")],
                    ),
                    lines(
                        41,
                        "KV cache used, by pod",
                        "percentunit",
                        Note(
                            "KV blocks that sequences hold, of all; cached blocks that nobody holds count as free.",
                            "below 80 %, and alike on all pods.",
                            "above 90 %: preemptions beside, then more memory or replicas. Pods apart: routing.",
                        ),
                        [Query(f"max by ({BY_POD}) (pagedserve_kv_cache_usage_ratio{{{POD}}})", "{{pod}}")],
                        steps=((None, "green"), (0.8, "yellow"), (0.9, "red")),
                        top=1,
                        links=[runbook("PagedServeSaturated"), panel("Engine", 40, "Engine: KV blocks by state")],
                    ),
                    lines(
                        42,
                        "Time in the queue",
                        "s",
                        Note(
                            "From arrival to the first place in a batch.",
                            "a few milliseconds.",
                            "if it grows, the service is too small for its load: see what the autoscaler does.",
                        ),
                        quantiles("pagedserve_request_queue_seconds"),
                        links=[runbook("PagedServeSaturated"), panel("Autoscaling", 10, "Autoscaling: replicas")],
                    ),
                ],
            ),
        ],
    )


def _replicas() -> Section:
    return Section(
        104,
        "Replicas",
        [
            Line(
                8,
                [
                    lines(
                        50,
                        "Replicas",
                        "none",
                        Note(
                            "Engines that take requests, what the Deployment wants, and the autoscaler's maximum.",
                            "ready follows wanted within the time of a load, and both stay below the maximum.",
                            "at the maximum: PagedServeScaledToMaximum. Wanted moves for no reason: dashboard "
                            "Autoscaling.",
                        ),
                        [
                            Query(
                                f"inferenceservice:pagedserve_engines_up:sum{{{SERVICE}}}",
                                f"{SERVICE_LEGEND} ready",
                            ),
                            Query(f"sum by ({BY_SERVICE}) ({wanted_replicas()})", f"{SERVICE_LEGEND} wanted"),
                            Query(
                                of_hpa('kube_horizontalpodautoscaler_spec_max_replicas{namespace=~"$namespace"}'),
                                f"{SERVICE_LEGEND} maximum",
                            ),
                        ],
                        dashed=(".* maximum",),
                        colors={".* maximum": "red"},
                        decimals=0,
                        links=[
                            runbook("PagedServeScaledToMaximum"),
                            runbook("PagedServeNoReplicas"),
                            panel("Autoscaling", 10, "Autoscaling: replicas"),
                        ],
                    ),
                    states(
                        51,
                        "State of each pod",
                        Note(
                            "Whether a pod's engine takes requests. A pod that ended has no colour from then on.",
                            "green. Orange after the start is a load; orange later is a drain or a dead engine.",
                            "the pod's log and events; PagedServeReplicaNotReady after half an hour.",
                        ),
                        [Query(f"max by ({BY_POD}) (pagedserve_engine_up{{{POD}}})", "{{pod}}")],
                        ENGINE_UP,
                        links=[runbook("PagedServeReplicaNotReady"), runbook("PagedServeCrashLoop")],
                    ),
                ],
            ),
            Line(
                8,
                [
                    _pods(),
                ],
            ),
        ],
    )


def _pods() -> Builder:
    instant = {"instant": True, "format": "table"}

    def query(expr: str) -> Query:
        return Query(expr, **instant)  # type: ignore[arg-type]

    return rows(
        52,
        "Pods",
        Note(
            "Each pod as it is now. Its name leads to the dashboard Engine, for this pod alone.",
            "all alike, no restarts: a pod that differs from its peers is where to begin.",
            "the pod's Engine dashboard, then kubectl logs and kubectl describe pod.",
        ),
        [
            query(f"max by ({BY_POD}) (pagedserve_engine_up{{{POD}}})"),
            query(f"max by ({BY_POD}) (pagedserve_requests_running{{{POD}}})"),
            query(f"max by ({BY_POD}) (pagedserve_requests_waiting{{{POD}}})"),
            query(f"max by ({BY_POD}) (pagedserve_kv_cache_usage_ratio{{{POD}}})"),
            query(rate("pagedserve_generation_tokens_total", BY_POD)),
            query(
                f"sum by ({BY_POD}) (\n"
                "  sum by (namespace, pod) "
                '(kube_pod_container_status_restarts_total{namespace=~"$namespace",pod=~"$pod"})\n'
                f"  * on (namespace, pod) group_left (inferenceservice)\n"
                f"  max by ({BY_POD}) (pagedserve_engine_up{{{POD}}} >= bool 0)\n)"
            ),
        ],
        [
            Column("namespace", "Namespace", width=140),
            Column("inferenceservice", "Service", width=160),
            Column(
                "pod",
                "Pod",
                link=drill_down(
                    "Engine", "Engine of this pod", namespace="Namespace", inferenceservice="Service", pod="Pod"
                ),
            ),
            Column("Value #A", "State", states=ENGINE_UP, width=140),
            Column("Value #B", "Running", decimals=0, width=100),
            Column("Value #C", "Waiting", decimals=0, width=100),
            Column(
                "Value #D",
                "KV cache",
                unit="percentunit",
                decimals=0,
                steps=((None, "green"), (0.8, "yellow"), (0.9, "red")),
                width=100,
            ),
            Column("Value #E", "Tokens/s", decimals=1, width=110),
            Column("Value #F", "Restarts", decimals=0, steps=((None, "text"), (1, "orange"), (3, "red")), width=100),
        ],
        sort="Pod",
        links=[runbook("PagedServeCrashLoop"), runbook("PagedServeScrapeFailed"), runbook("PagedServeMetricsAbsent")],
    )


def service_overview() -> Board:
    return Board(
        title="Service overview",
        description="For whoever is on call: is it well, and if not, where to look. From top to bottom: what fires, "
        "what is promised, what comes and how it ends, how full it is, and the replicas.",
        since="3h",
        sections=[
            Section(
                100,
                "Now",
                [
                    Line(4, _headline(), widths=(3, 4, 3, 3, 3, 4, 4)),
                    Line(
                        5,
                        [
                            _alert_table(),
                        ],
                    ),
                ],
            ),
            objectives(101),
            _traffic(),
            _saturation(),
            _replicas(),
        ],
        events=(ALERT, ROLL_OUT, SCALE_UP, SCALE_DOWN),
    )
