"""The service overview: what whoever is on call opens first."""

from __future__ import annotations

from grafana.board import Board, Line, Section
from grafana.boards.now import now
from grafana.boards.replicas import replicas
from grafana.boards.slo import objectives
from grafana.events import ALERT, ROLL_OUT, SCALE_DOWN, SCALE_UP
from grafana.links import panel, runbook
from grafana.panels import TOKENS_A_SECOND, Note, lines
from grafana.queries import BY_POD, BY_SERVICE, POD, SERVICE, SERVICE_LEGEND, Query, quantiles, rate

_REASONS = {"stop": "green", "length": "blue", "abort": "yellow", "error": "red"}


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
                        TOKENS_A_SECOND,
                        Note(
                            "Tokens generated, and prompt tokens of the requests whose first token came.",
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


def service_overview() -> Board:
    return Board(
        title="Service overview",
        description="For whoever is on call: is it well, and if not, where to look. From top to bottom: what fires, "
        "what is promised, what comes and how it ends, how full it is, and the replicas.",
        since="3h",
        sections=[
            now(100),
            objectives(101),
            _traffic(),
            _saturation(),
            replicas(104),
        ],
        events=(ALERT, ROLL_OUT, SCALE_UP, SCALE_DOWN),
    )
