"""Rows of the engine dashboard: throughput, batches, steps and the queue."""

from __future__ import annotations

from grafana.board import Line, Section
from grafana.links import doc, panel, runbook
from grafana.panels import TOKENS_A_SECOND, Note, heat_map, lines
from grafana.queries import BY_POD, Query, buckets, mean, quantiles, rate, total

POD_LEGEND = "{{pod}}"


def throughput() -> Section:
    return Section(
        100,
        "Throughput",
        [
            Line(
                8,
                [
                    lines(
                        10,
                        "Generated tokens a second, by pod",
                        TOKENS_A_SECOND,
                        Note(
                            "Tokens generated, over all sequences of a pod.",
                            "alike on all pods; levels off when a pod is full.",
                            "one pod below its peers: its batch and step time, then its node.",
                        ),
                        [Query(rate("pagedserve_generation_tokens_total", BY_POD), POD_LEGEND)],
                        stacked=True,
                        links=[panel("Service overview", 32, "Service overview: tokens a second")],
                    ),
                    lines(
                        11,
                        "Tokens computed a second: prompt and answer",
                        TOKENS_A_SECOND,
                        Note(
                            "What the steps compute: tokens of prompts (and what preempted sequences compute "
                            "again), and "
                            "one token for each that is generated. Cached prompt tokens cost nothing and are not "
                            "here.",
                            "the mix of your traffic: mostly prompt for retrieval and summaries, mostly answer "
                            "for chat.",
                            "prompt tokens crowd answers out: Time between tokens grows; lower "
                            "--max_num_batched_tokens.",
                        ),
                        [
                            Query(
                                "clamp_min(\n"
                                f"  {rate('pagedserve_step_batch_tokens_sum', '')}\n"
                                f"  - {rate('pagedserve_generation_tokens_total', '')},\n  0\n)",
                                "prompt (prefill)",
                            ),
                            Query(rate("pagedserve_generation_tokens_total", ""), "answer (decode)"),
                        ],
                        stacked=True,
                        colors={"prompt \\(prefill\\)": "blue", "answer \\(decode\\)": "green"},
                        links=[doc("structures.md", "How a step is made")],
                    ),
                    lines(
                        12,
                        "Requests that ended, by pod",
                        "reqps",
                        Note(
                            "Requests that ended, a second.",
                            "alike on all pods, where they are balanced by load.",
                            "one pod has far more: the gateway's balancing, or sessions that stick.",
                        ),
                        [Query(rate("pagedserve_requests_total", BY_POD), POD_LEGEND)],
                        stacked=True,
                    ),
                ],
            )
        ],
    )


def batch() -> Section:
    return Section(
        101,
        "Batch",
        [
            Line(
                8,
                [
                    lines(
                        20,
                        "Sequences in the batch, by pod",
                        "none",
                        Note(
                            "Sequences that the engine runs, preempted ones among them.",
                            "below --max_num_seqs (256 unless set): at that bound others wait although there is room.",
                            "at the bound with KV cache to spare: raise it.",
                        ),
                        [Query(total("pagedserve_requests_running", BY_POD), POD_LEGEND)],
                    ),
                    lines(
                        21,
                        "Sequences and tokens of a step, mean",
                        "none",
                        Note(
                            "How large a step is: the sequences in it, and the tokens that it computes.",
                            "about as many tokens as sequences in pure decode; more where prompts are computed "
                            "beside it.",
                            "tokens at --max_num_batched_tokens: prompts wait for the budget of steps.",
                        ),
                        [
                            Query(mean("pagedserve_step_batch_requests"), "sequences"),
                            Query(mean("pagedserve_step_batch_tokens"), "tokens"),
                        ],
                    ),
                    heat_map(
                        22,
                        "Sequences in a step",
                        "none",
                        Note(
                            "How often steps have how many sequences (the colour is steps a second).",
                            "one band that moves with the load. A band at 1 beside it: few requests at a time.",
                            "Steps below: larger batches cost little time each.",
                        ),
                        buckets("pagedserve_step_batch_requests"),
                        scheme="Blues",
                    ),
                    heat_map(
                        23,
                        "Tokens in a step",
                        "none",
                        Note(
                            "How often steps compute how many tokens (the colour is steps a second).",
                            "a low band (decode) and a thin high one (steps with prompts).",
                            "the high one dominates: prefill is the bottleneck. See the hit rate of the prefix cache.",
                        ),
                        buckets("pagedserve_step_batch_tokens"),
                        scheme="Blues",
                    ),
                ],
            )
        ],
    )


def steps() -> Section:
    return Section(
        102,
        "Steps",
        [
            Line(
                8,
                [
                    lines(
                        30,
                        "Step time",
                        "s",
                        Note(
                            "One step of the engine: every running sequence gets a token in it.",
                            "p50 well below 0.25 s, the objective for gaps between tokens (line).",
                            "grows with the batch: Tokens in a step. Grows alone: a throttled CPU or a shared GPU.",
                        ),
                        quantiles("pagedserve_engine_step_seconds"),
                        steps=((None, "green"), (0.25, "red")),
                        links=[runbook("PagedServeInterTokenSLOBurn")],
                    ),
                    heat_map(
                        31,
                        "Step time, all steps",
                        "s",
                        Note(
                            "How long steps take (the colour is steps a second).",
                            "a narrow band. A second, slower one is the steps that compute prompts.",
                            "a wide smear: look at one pod at a time (variable Pod).",
                        ),
                        buckets("pagedserve_engine_step_seconds"),
                        scheme="Oranges",
                    ),
                    lines(
                        32,
                        "Busy: share of the time in steps, by pod",
                        "percentunit",
                        Note(
                            "Seconds of steps a second: how much of the time an engine computes.",
                            "follows the load; 100 % is an engine that never pauses, which alone is no fault.",
                            "100 % with a growing queue: full. Below with a queue: the front process or admission.",
                        ),
                        [Query(rate("pagedserve_engine_step_seconds_sum", BY_POD), POD_LEGEND)],
                        soft_top=1,
                    ),
                ],
            )
        ],
    )


def queue() -> Section:
    return Section(
        103,
        "Queue",
        [
            Line(
                8,
                [
                    lines(
                        35,
                        "Waiting sequences, by pod",
                        "none",
                        Note(
                            "Sequences that wait for a place in the batch.",
                            "0 but for moments, and on no pod alone.",
                            "KV cache full: more memory or replicas. Not full: the token budget of steps is spent.",
                        ),
                        [Query(total("pagedserve_requests_waiting", BY_POD), POD_LEGEND)],
                        links=[runbook("PagedServeSaturated"), runbook("PagedServeRejects")],
                    ),
                    lines(
                        36,
                        "Waiting prompt tokens, by pod",
                        "none",
                        Note(
                            "Prompt tokens of the waiting sequences: the prefill that is still to do.",
                            "near 0. Divided by --max_num_batched_tokens and the step time it is the wait to come.",
                            "high with few waiting: long prompts; bound them with --max_waiting_tokens.",
                        ),
                        [Query(total("pagedserve_waiting_prompt_tokens", BY_POD), POD_LEGEND)],
                        links=[runbook("PagedServeRejects")],
                    ),
                    lines(
                        37,
                        "Time in the queue",
                        "s",
                        Note(
                            "From arrival to the first place in a batch.",
                            "milliseconds.",
                            "Autoscaling: whether more replicas are wanted, and whether they come.",
                        ),
                        quantiles("pagedserve_request_queue_seconds"),
                        links=[runbook("PagedServeSaturated"), panel("Autoscaling", 10, "Autoscaling: replicas")],
                    ),
                ],
            )
        ],
    )
