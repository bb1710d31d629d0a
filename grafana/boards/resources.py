"""Rows of the engine dashboard: the KV cache and the server process."""

from __future__ import annotations

from grafana.board import Line, Section
from grafana.links import runbook
from grafana.panels import Note, lines
from grafana.queries import BY_POD, POD, Query, rate, total

POD_LEGEND = "{{pod}}"


def kv_cache() -> Section:
    query_tokens = rate("pagedserve_prefix_cache_query_tokens_total", BY_POD)
    hit_tokens = rate("pagedserve_prefix_cache_hit_tokens_total", BY_POD)
    return Section(
        104,
        "KV cache",
        [
            Line(
                8,
                [
                    lines(
                        40,
                        "KV blocks by state",
                        "none",
                        Note(
                            "Blocks of the pods chosen: used (held by sequences), cached (nobody holds it, a "
                            "prefix lookup "
                            "finds it), free.",
                            "little free is good use; used near the top is not.",
                            "used at the top: Preemptions beside. Never any cached: prompts share no prefix, or "
                            "it is off.",
                        ),
                        [Query(total("pagedserve_kv_cache_blocks", "state"), "{{state}}")],
                        stacked=True,
                        colors={"used": "orange", "cached": "blue", "free": "green"},
                        links=[runbook("PagedServeSaturated")],
                    ),
                    lines(
                        41,
                        "KV cache used and wasted, by pod",
                        "percentunit",
                        Note(
                            "Used: blocks held by sequences, of all. Wasted: slots of held blocks that no token "
                            "fills yet, "
                            "of those held.",
                            "used below 80 %; wasted a few percent. Short sequences waste more: half a block each.",
                            "wasted high with long sequences: a larger batch than the cache is fit for.",
                        ),
                        [
                            Query(
                                f"max by ({BY_POD}) (pagedserve_kv_cache_usage_ratio{{{POD}}})", f"{POD_LEGEND} used"
                            ),
                            Query(
                                f"max by ({BY_POD}) (pagedserve_kv_cache_waste_ratio{{{POD}}})", f"{POD_LEGEND} wasted"
                            ),
                        ],
                        steps=((None, "green"), (0.8, "yellow"), (0.9, "red")),
                        top=1,
                        dashed=(".* wasted",),
                        links=[runbook("PagedServeSaturated")],
                    ),
                    lines(
                        42,
                        "Prefix cache hit rate, by pod",
                        "percentunit",
                        Note(
                            "Prompt tokens found in the prefix cache, of those looked up; no line where nothing was.",
                            "as high as prompts have in common: a shared system prompt of half their length "
                            "gives 50 %.",
                            "it falls with more replicas: route by prefix (the endpoint picker). It falls with "
                            "load: evictions.",
                        ),
                        [Query(f"{hit_tokens}\n/\n({query_tokens} > 0)", POD_LEGEND)],
                        top=1,
                        no_value="Nothing was looked up",
                        links=[runbook("PagedServeEndpointPickerDown")],
                    ),
                    lines(
                        43,
                        "Preemptions, by pod",
                        "ops",
                        Note(
                            "Sequences a second that gave up their KV blocks to others; they are computed again.",
                            "0. Above 0.1 a second and replica (line) PagedServePreemptionStorm fires.",
                            "fewer sequences at once (--max_num_seqs), more KV memory, or a lower KV threshold "
                            "of the autoscaler.",
                        ),
                        [Query(rate("pagedserve_preemptions_total", BY_POD), POD_LEGEND)],
                        steps=((None, "green"), (0.1, "red")),
                        soft_top=0.2,
                        links=[runbook("PagedServePreemptionStorm")],
                    ),
                ],
            )
        ],
    )


def process() -> Section:
    return Section(
        107,
        "Processes",
        [
            Line(
                8,
                [
                    lines(
                        80,
                        "CPU of the server process, by pod",
                        "none",
                        Note(
                            "Cores that the front process uses: HTTP, gRPC, tokenising, metrics.",
                            "below 1: it runs on one core, and at 1 every stream waits for it.",
                            "near 1: more replicas, or fewer access logs.",
                        ),
                        [Query(rate("process_cpu_seconds_total", BY_POD), POD_LEGEND)],
                        steps=((None, "green"), (0.9, "red")),
                        soft_top=1,
                    ),
                    lines(
                        81,
                        "CPU of the engine process, by pod",
                        "none",
                        Note(
                            "Cores that the engine process uses: it prepares steps for a GPU, or computes them itself.",
                            "on a GPU about 1; on a CPU up to the number of its threads.",
                            "on a CPU far below its threads under load: it is throttled (limits) or shares its cores.",
                        ),
                        [Query(rate("pagedserve_engine_process_cpu_seconds_total", BY_POD), POD_LEGEND)],
                        soft_top=1,
                        links=[runbook("PagedServeInterTokenSLOBurn")],
                    ),
                    lines(
                        83,
                        "Memory of both processes, by pod",
                        "bytes",
                        Note(
                            "Resident memory of the front process and of the engine (with the weights, on a CPU).",
                            "flat after the first minutes, below the pod's limit.",
                            "steady growth is a leak: report it, and restart the pod before the kernel does.",
                        ),
                        [
                            Query(
                                f"max by ({BY_POD}) (process_resident_memory_bytes{{{POD}}})", f"{POD_LEGEND} server"
                            ),
                            Query(
                                f"max by ({BY_POD}) (pagedserve_engine_process_resident_memory_bytes{{{POD}}})",
                                f"{POD_LEGEND} engine",
                            ),
                        ],
                        links=[runbook("PagedServeCrashLoop")],
                    ),
                    lines(
                        82,
                        "Scrapes: how long they take, by pod",
                        "s",
                        Note(
                            "How long Prometheus waits for a pod's /metrics.",
                            "well below a second; at 10 s the scrape fails.",
                            "slow scrapes are a busy front process: its CPU beside.",
                        ),
                        [Query(f"max by ({BY_POD}) (scrape_duration_seconds{{{POD}}})", POD_LEGEND)],
                        steps=((None, "green"), (1, "yellow"), (10, "red")),
                        links=[runbook("PagedServeScrapeFailed")],
                    ),
                ],
            )
        ],
        collapsed=True,
    )
