"""How long requests take in Compare versions."""

from __future__ import annotations

from grafana.board import Line, Section
from grafana.boards.version_pairs import CANARY, STABLE, pair, pods_of
from grafana.panels import Note, heat_map
from grafana.queries import buckets, quantile


def latency() -> Section:
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
                    pair(
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
                    pair(
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
                    pair(
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
