"""The verdict of Compare versions: numbers of the whole time range, and what is compared."""

from __future__ import annotations

from dataclasses import replace

from grafana.board import Line, Section
from grafana.boards.version_pairs import CANARY, ENDED, ERRORS, STABLE, TOKENS, both, pods_of, whole
from grafana.links import doc, runbook
from grafana.panels import Builder, Column, Note, bars, number, rows
from grafana.queries import POD, Query, quantile, rate

_TTFT = quantile(0.95, "pagedserve_time_to_first_token_seconds", labels="PODS")
_GAP = quantile(0.99, "pagedserve_inter_token_latency_seconds", labels="PODS")
_SHARE_STEPS = ((None, "green"), (1.1, "yellow"), (1.25, "red"))


def verdict() -> Section:
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
            no_value="Not two versions of one service",
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
                        TOKENS,
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
                        [replace(query, instant=True) for query in both(whole(ERRORS))],
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
                                f"{whole(ENDED).replace('PODS', pods_of(version))}\n/\n"
                                f"({whole(rate('pagedserve_requests_total', '', POD))} > 0)",
                                version,
                                instant=True,
                            )
                            for version in (STABLE, CANARY)
                        ],
                        decimals=0,
                        top=1,
                        no_value="No request ended",
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


def _ratio(form: str) -> str:
    """The canary's value over the stable one's.

    NOTE: empty where both are the same pods, which would be 100 %, and where they are of two services, as they may be
    after a link from a dashboard that shows all.
    """
    stable, canary = (query.expr for query in both(whole(form)))
    pods = "last_over_time(pagedserve_engine_up{PODS}[$__range])"
    of_stable, of_canary = (query.expr for query in both(pods))
    services = f"count by (cluster, namespace, inferenceservice) ({of_stable} or {of_canary})"
    return f"({canary})\n/\n({stable} > 0)\nand\ncount({of_canary} unless {of_stable})\nand\ncount({services}) == 1"
