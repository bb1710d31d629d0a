"""Rows of the engine dashboard: latencies, and lengths of prompts and answers."""

from __future__ import annotations

from grafana.board import Line, Section
from grafana.links import runbook
from grafana.panels import Note, bars, heat_map, lines
from grafana.queries import BY_POD, Query, buckets, in_range, mean, quantile

POD_LEGEND = "{{pod}}"


def latency() -> Section:
    return Section(
        105,
        "Latency",
        [
            Line(
                9,
                [
                    heat_map(
                        60,
                        "Time to first token, all requests",
                        "s",
                        Note(
                            "How long requests wait for their first token (the colour is requests a second).",
                            "nearly all below 2.5 s, the objective.",
                            "two bands are two kinds of prompts; a rising band is a queue.",
                        ),
                        buckets("pagedserve_time_to_first_token_seconds"),
                        scheme="Oranges",
                        links=[runbook("PagedServeFirstTokenSLOBurn")],
                    ),
                    heat_map(
                        61,
                        "Time between tokens, all tokens",
                        "s",
                        Note(
                            "Gaps between tokens of a sequence (the colour is tokens a second).",
                            "nearly all below 0.25 s, the objective.",
                            "a second band is steps that compute prompts of others: see Tokens in a step.",
                        ),
                        buckets("pagedserve_inter_token_latency_seconds"),
                        scheme="Oranges",
                        links=[runbook("PagedServeInterTokenSLOBurn")],
                    ),
                ],
            ),
            Line(
                8,
                [
                    lines(
                        62,
                        "Where the time of a request goes, mean",
                        "s",
                        Note(
                            "Mean time in the queue, to the first token once admitted (prefill), and from there "
                            "to the end "
                            "(decode).",
                            "decode has most of it, queue nearly nothing.",
                            "queue: replicas. Prefill: long or uncached prompts. Decode: step time, or longer answers.",
                        ),
                        [
                            Query(mean("pagedserve_request_queue_seconds"), "queue"),
                            Query(mean("pagedserve_request_prefill_seconds"), "prefill"),
                            Query(mean("pagedserve_request_decode_seconds"), "decode"),
                        ],
                        stacked=True,
                        colors={"queue": "red", "prefill": "blue", "decode": "green"},
                    ),
                    lines(
                        63,
                        "Time to first token p95, by pod",
                        "s",
                        Note(
                            "The 95th percentile of each pod.",
                            "alike on all pods, below 2.5 s (line).",
                            "one pod apart: its queue, then its node.",
                        ),
                        [Query(quantile(0.95, "pagedserve_time_to_first_token_seconds", BY_POD), POD_LEGEND)],
                        steps=((None, "green"), (2.5, "red")),
                        links=[runbook("PagedServeFirstTokenSLOBurn")],
                    ),
                    lines(
                        64,
                        "Time between tokens p99, by pod",
                        "s",
                        Note(
                            "The 99th percentile of each pod.",
                            "alike on all pods, below 0.25 s (line).",
                            "one pod apart: its step time, then its node.",
                        ),
                        [Query(quantile(0.99, "pagedserve_inter_token_latency_seconds", BY_POD), POD_LEGEND)],
                        steps=((None, "green"), (0.25, "red")),
                        links=[runbook("PagedServeInterTokenSLOBurn")],
                    ),
                ],
            ),
        ],
    )


def lengths() -> Section:
    what = "How many requests of the time range had how many tokens; each bar goes up to its number."
    return Section(
        106,
        "Lengths of prompts and answers",
        [
            Line(
                9,
                [
                    heat_map(
                        70,
                        "Prompt tokens of requests",
                        "none",
                        Note(
                            "Lengths of prompts over time (the colour is requests a second).",
                            "what your traffic is: know its shape, so that a change is seen.",
                            "longer than before: first tokens come later and the KV cache fills sooner.",
                        ),
                        buckets("pagedserve_request_prompt_tokens"),
                        scheme="Blues",
                    ),
                    bars(
                        71,
                        "Prompt tokens, distribution",
                        "short",
                        Note(
                            what,
                            "one hump; a second one is a second kind of traffic.",
                            "--max_model_len and --max_waiting_tokens, if the longest hurt the others.",
                        ),
                        [in_range("pagedserve_request_prompt_tokens")],
                        decimals=0,
                    ),
                    heat_map(
                        72,
                        "Generated tokens of requests",
                        "none",
                        Note(
                            "Lengths of answers over time (the colour is requests a second).",
                            "what your traffic is. One sharp line is the client's limit (finish reason length).",
                            "longer than before: requests last longer and more run at once.",
                        ),
                        buckets("pagedserve_request_generation_tokens"),
                        scheme="Greens",
                    ),
                    bars(
                        73,
                        "Generated tokens, distribution",
                        "short",
                        Note(
                            what,
                            "one hump.",
                            "many at the limit: clients' max_tokens cut answers off.",
                        ),
                        [in_range("pagedserve_request_generation_tokens")],
                        steps=((None, "green"),),
                        decimals=0,
                    ),
                ],
            )
        ],
    )
