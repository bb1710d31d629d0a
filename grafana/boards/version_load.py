"""What the replicas of Compare versions do, and how full they are."""

from __future__ import annotations

from grafana.board import Line, Section
from grafana.boards.version_pairs import COUNT, ENDED, ERRORS, TOKENS, pair
from grafana.panels import TOKENS_A_SECOND, Note
from grafana.queries import mean, quantile, rate


def load() -> Section:
    per_replica = f"{ENDED}\n/ {COUNT}"
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
                    pair(
                        20,
                        "Generated tokens a second and replica",
                        TOKENS_A_SECOND,
                        Note(
                            "The work of one replica of each version.",
                            "as the shares of traffic are.",
                            "less at as many requests: shorter answers, or slower steps.",
                        ),
                        TOKENS,
                    ),
                    pair(
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
                    pair(
                        22,
                        "Errors, share of requests",
                        "percentunit",
                        Note(
                            "Requests that ended by an error of ours, of those that ended.",
                            "0 on both; 0.5 % is the objective (line).",
                            "the canary alone: roll back.",
                        ),
                        ERRORS,
                        objective=0.005,
                        alert="PagedServeErrorSLOBurn",
                        no_value="No request ended",
                    ),
                    pair(
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
                    pair(
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
                    pair(
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
                    pair(
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
                    pair(
                        27,
                        "Prefix cache hit rate",
                        "percentunit",
                        Note(
                            "Prompt tokens found in the prefix cache, of those looked up.",
                            "alike once the canary is warm.",
                            "lower on the canary: fewer of its requests share a prefix, or another chat template.",
                        ),
                        hits,
                        no_value="Nothing was looked up",
                    ),
                ],
            ),
        ],
    )
