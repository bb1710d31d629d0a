"""Two versions beside each other: a canary and what it would replace."""

from __future__ import annotations

from dataclasses import replace

from grafana_foundation_sdk.models.dashboard import VariableSort

from grafana.board import Board, Line, Section
from grafana.events import ALERT, ROLL_OUT
from grafana.links import doc, runbook
from grafana.panels import Builder, Column, Note, bars, heat_map, lines, number, rows
from grafana.queries import POD, Query, buckets, mean, quantile, rate
from grafana.variables import revision

STABLE, CANARY = "stable", "canary"
COLORS = {f"{STABLE}.*": "blue", f"{CANARY}.*": "orange"}


def pods_of(version: str) -> str:
    """Matchers of the pods of the ReplicaSets chosen as that version.

    NOTE: with $pod as well, so that a pod can be left out of the comparison.
    """
    return f'{POD},pod=~"${{{version}}}-[a-z0-9]{{5}}"'


def both(form: str, legend: str = "") -> list[Query]:
    """The expression for each of the versions; `form` has PODS where the matchers of pods go."""
    return [
        Query(form.replace("PODS", pods_of(version)), f"{version} {legend}".strip()) for version in (STABLE, CANARY)
    ]


def whole(form: str) -> str:
    """The same over the time range of the dashboard: one number for a verdict."""
    return form.replace("$__rate_interval", "$__range")


def _ratio(form: str) -> str:
    """The canary's value over the stable one's. NOTE: empty where both are the same pods, which would be 100 %."""
    stable, canary = (query.expr for query in both(whole(form)))
    pods = "last_over_time(pagedserve_engine_up{PODS}[$__range])"
    of_stable, of_canary = (query.expr for query in both(pods))
    return f"({canary})\n/\n({stable} > 0)\nand\ncount({of_canary} unless {of_stable})"


_TTFT = quantile(0.95, "pagedserve_time_to_first_token_seconds", labels="PODS")
_GAP = quantile(0.99, "pagedserve_inter_token_latency_seconds", labels="PODS")
_COUNT = "count(pagedserve_engine_up{PODS})"
_TOKENS = f"{rate('pagedserve_generation_tokens_total', '', 'PODS')}\n/ {_COUNT}"
_ENDED = rate("pagedserve_requests_total", "", "PODS")
_ERRORS = rate('pagedserve_requests_total{finish_reason="error"}', "", "PODS") + f"\n/\n({_ENDED} > 0)"
_SHARE_STEPS = ((None, "green"), (1.1, "yellow"), (1.25, "red"))


def _verdict() -> Section:
    def ratio(panel_id: int, title: str, form: str, note: Note, steps: tuple[tuple[float | None, str], ...]) -> Builder:
        return number(
            panel_id,
            title,
            "percentunit",
            note,
            [Query(_ratio(form), "canary / stable", instant=True)],
            spark=False,
            steps=steps,
            decimals=0,
            no_value="Nothing to compare",
        )

    return Section(
        100,
        "Verdict: the canary, in percent of the stable version",
        [
            Line(
                4,
                [
                    ratio(
                        1,
                        "Time to first token p95",
                        _TTFT,
                        Note(
                            "The canary's 95th percentile over the stable one's, of all requests of the time range.",
                            "100 % or less; up to 110 % is noise on little traffic.",
                            "Time to first token below; a new pod has a cold prefix cache.",
                        ),
                        _SHARE_STEPS,
                    ),
                    ratio(
                        2,
                        "Time between tokens p99",
                        _GAP,
                        Note(
                            "The canary's 99th percentile over the stable one's, of all gaps of the time range.",
                            "100 % or less.",
                            "Time between tokens and step time below.",
                        ),
                        _SHARE_STEPS,
                    ),
                    ratio(
                        3,
                        "Generated tokens per replica",
                        _TOKENS,
                        Note(
                            "Tokens of the time range for each replica there is, the canary's over the stable one's.",
                            "the canary's share of traffic per replica over the stable one's: 100 % with equal shares.",
                            "compare it with Requests per replica below: fewer tokens for as many requests are "
                            "shorter answers.",
                        ),
                        ((None, "text"),),
                    ),
                    number(
                        4,
                        "Errors: stable, canary",
                        "percentunit",
                        Note(
                            "Requests that ended by an error of ours, of those that ended in the time range.",
                            "0 on both.",
                            "errors of the canary alone: roll back (docs/kubernetes.md), then its log.",
                        ),
                        [replace(query, instant=True) for query in both(whole(_ERRORS))],
                        steps=((None, "green"), (0.005, "red")),
                        decimals=2,
                        spark=False,
                        no_value="No request ended",
                        links=[runbook("PagedServeErrorSLOBurn"), doc("kubernetes.md", "Promote and roll back")],
                    ),
                ],
            ),
            Line(
                6,
                [
                    _compared(),
                    bars(
                        6,
                        "Share of the requests",
                        "percentunit",
                        Note(
                            "Of the requests that ended in the time range, those of each version.",
                            "the canary's trafficPercent.",
                            "another share than asked for: the HTTPRoute that KServe wrote, and which pods are ready.",
                        ),
                        [
                            Query(
                                f"{whole(_ENDED).replace('PODS', pods_of(version))}\n/\n"
                                f"({whole(rate('pagedserve_requests_total', '', POD))} > 0)",
                                version,
                                instant=True,
                            )
                            for version in (STABLE, CANARY)
                        ],
                        decimals=0,
                        top=1,
                        links=[doc("kubernetes.md", "Canary")],
                    ),
                ],
                widths=(18, 6),
            ),
        ],
    )


def _compared() -> Builder:
    info = ("version", "architecture", "num_parameters", "device", "dtype", "max_model_len")
    build = ("torch", "triton")
    heads = ("Version", "Architecture", "Parameters", "Device", "Dtype", "Context", "torch", "triton")
    chosen = f'{POD},pod=~"(${{{STABLE}}}|${{{CANARY}}})-[a-z0-9]{{5}}"'
    expr = (
        f"max by (pod, {', '.join(info)}, {', '.join(build)}) (\n  (pagedserve_info{{{chosen}}} == 1)\n"
        f"  * on (namespace, pod) group_left ({', '.join(build)})\n"
        f"  max by (namespace, pod, {', '.join(build)}) (pagedserve_build_info{{{chosen}}})\n)"
    )
    return rows(
        5,
        "What is compared",
        Note(
            "The pods of both versions and what their servers say of themselves.",
            "two versions that differ in what you changed, and in nothing else.",
            "another device or dtype on one side: latencies do not compare.",
        ),
        [Query(expr, instant=True, format="table")],
        [
            Column("pod", "Pod", width=330),
            *(
                Column(name, head, width=160 if name == "architecture" else None)
                for name, head in zip((*info, *build), heads, strict=True)
            ),
        ],
        hidden=("Value",),
        sort="Pod",
    )


def _pair(
    panel_id: int,
    title: str,
    unit: str,
    note: Note,
    form: str,
    *,
    objective: float | None = None,
    alert: str | None = None,
    more: str | None = None,
) -> Builder:
    queries = both(form) if more is None else [*both(form, "p95"), *both(more, "p50")]
    return lines(
        panel_id,
        title,
        unit,
        note,
        queries,
        colors=COLORS,
        dashed=(".* p50",),
        steps=((None, "green"), (objective, "red")) if objective is not None else None,
        soft_top=2 * objective if objective is not None and unit == "percentunit" else None,
        links=[runbook(alert)] if alert is not None else [],
        no_value="No pods of these versions",
    )


def _latency() -> Section:
    def halves(histogram: str) -> tuple[str, str]:
        return quantile(0.95, histogram, labels="PODS"), quantile(0.5, histogram, labels="PODS")

    ttft, ttft_half = halves("pagedserve_time_to_first_token_seconds")
    gap, gap_half = halves("pagedserve_inter_token_latency_seconds")
    duration, duration_half = halves("pagedserve_request_duration_seconds")
    return Section(
        101,
        "Latency",
        [
            Line(
                8,
                [
                    _pair(
                        10,
                        "Time to first token p95 (p50 dashed)",
                        "s",
                        Note(
                            "From arrival to the first token, of each version.",
                            "the canary not above the stable one, both below 2.5 s (line).",
                            "the heatmaps below show whether all requests differ or a few.",
                        ),
                        ttft,
                        more=ttft_half,
                        objective=2.5,
                        alert="PagedServeFirstTokenSLOBurn",
                    ),
                    _pair(
                        11,
                        "Time between tokens p95 (p50 dashed)",
                        "s",
                        Note(
                            "Between tokens of a sequence, of each version.",
                            "the canary not above the stable one, both below 0.25 s (line).",
                            "step time and sequences in a step below: a version with more load is slower.",
                        ),
                        gap,
                        more=gap_half,
                        objective=0.25,
                        alert="PagedServeInterTokenSLOBurn",
                    ),
                    _pair(
                        12,
                        "Request duration p95 (p50 dashed)",
                        "s",
                        Note(
                            "From arrival to the end, of each version.",
                            "alike, where answers are as long.",
                            "Generated tokens of a request below: longer answers take longer.",
                        ),
                        duration,
                        more=duration_half,
                    ),
                ],
            ),
            Line(
                8,
                [
                    heat_map(
                        panel_id,
                        f"{name}: {version}",
                        "s",
                        Note(
                            f"{name}, of the {version} version (the colour is a second's count in a bucket).",
                            "the same shape on both sides, at the same height.",
                            "a band that only the canary has: what those requests have in common (its log, by "
                            "request).",
                        ),
                        buckets(histogram, pods_of(version)),
                        scheme="Blues" if version == STABLE else "Oranges",
                    )
                    for panel_id, name, histogram, version in (
                        (13, "First token", "pagedserve_time_to_first_token_seconds", STABLE),
                        (14, "First token", "pagedserve_time_to_first_token_seconds", CANARY),
                        (15, "Between tokens", "pagedserve_inter_token_latency_seconds", STABLE),
                        (16, "Between tokens", "pagedserve_inter_token_latency_seconds", CANARY),
                    )
                ],
            ),
        ],
    )


def _load() -> Section:
    per_replica = f"{_ENDED}\n/ {_COUNT}"
    refused = rate("pagedserve_requests_rejected_total", "", "PODS")
    answer = mean("pagedserve_request_generation_tokens", labels="PODS")
    step = quantile(0.95, "pagedserve_engine_step_seconds", labels="PODS")
    hits = (
        f"{rate('pagedserve_prefix_cache_hit_tokens_total', '', 'PODS')}\n/\n"
        f"({rate('pagedserve_prefix_cache_query_tokens_total', '', 'PODS')} > 0)"
    )
    return Section(
        102,
        "Work, errors and room",
        [
            Line(
                8,
                [
                    _pair(
                        20,
                        "Generated tokens a second and replica",
                        "none",
                        Note(
                            "The work of one replica of each version.",
                            "as the shares of traffic are.",
                            "less at as many requests: shorter answers, or slower steps.",
                        ),
                        _TOKENS,
                    ),
                    _pair(
                        21,
                        "Requests a second and replica",
                        "reqps",
                        Note(
                            "Requests that ended, of one replica of each version.",
                            "as trafficPercent and the numbers of replicas say.",
                            "it differs: latencies compare only for equal load.",
                        ),
                        per_replica,
                    ),
                    _pair(
                        22,
                        "Errors, share of requests",
                        "percentunit",
                        Note(
                            "Requests that ended by an error of ours, of those that ended.",
                            "0 on both; 0.5 % is the objective (line).",
                            "the canary alone: roll back.",
                        ),
                        _ERRORS,
                        objective=0.005,
                        alert="PagedServeErrorSLOBurn",
                    ),
                    _pair(
                        23,
                        "Refused requests",
                        "reqps",
                        Note(
                            "Requests answered 429 or 503 before they reached an engine.",
                            "0 on both.",
                            "the canary alone: too few replicas for its share, or it is not ready.",
                        ),
                        refused,
                        alert="PagedServeRejects",
                    ),
                ],
            ),
            Line(
                8,
                [
                    _pair(
                        24,
                        "Generated tokens of a request, mean",
                        "none",
                        Note(
                            "How long answers are.",
                            "alike: the same questions to the same kind of model.",
                            "another length is another behaviour: read answers of both before you promote.",
                        ),
                        answer,
                    ),
                    _pair(
                        25,
                        "Step time p95",
                        "s",
                        Note(
                            "One step of the engine, of each version.",
                            "the canary not above the stable one.",
                            "slower at an equal batch: the version itself (kernels, dtype, model).",
                        ),
                        step,
                    ),
                    _pair(
                        26,
                        "KV cache used, mean of the pods",
                        "percentunit",
                        Note(
                            "KV blocks held by sequences, of all.",
                            "alike, below 80 %.",
                            "higher on the canary: a smaller pool, or longer answers.",
                        ),
                        "avg(pagedserve_kv_cache_usage_ratio{PODS})",
                        alert="PagedServeSaturated",
                    ),
                    _pair(
                        27,
                        "Prefix cache hit rate",
                        "percentunit",
                        Note(
                            "Prompt tokens found in the prefix cache, of those looked up.",
                            "alike once the canary is warm.",
                            "lower on the canary: fewer of its requests share a prefix, or another chat template.",
                        ),
                        hits,
                    ),
                ],
            ),
        ],
    )


def compare_versions() -> Board:
    return Board(
        title="Compare versions",
        description="Two versions of a service beside each other. A version is a ReplicaSet: a canary's Deployment has "
        "its own, and so has every roll-out of one Deployment. Choose which is which in the head.",
        since="1h",
        one_service=True,
        variables=(
            revision(
                STABLE, "Stable", "ReplicaSets of the version that is to be replaced", VariableSort.ALPHABETICAL_ASC
            ),
            revision(CANARY, "Canary", "ReplicaSets of the version that is tried", VariableSort.ALPHABETICAL_DESC),
        ),
        sections=[_verdict(), _latency(), _load()],
        events=(ROLL_OUT, ALERT),
    )
