"""The engine: batches, steps, queue, KV cache, latencies and lengths, by pod."""

from __future__ import annotations

from grafana.board import Board, Line, Section
from grafana.boards.gpu import gpus
from grafana.events import ALERT, ROLL_OUT, SCALE_DOWN, SCALE_UP
from grafana.links import doc, panel, runbook
from grafana.panels import Note, bars, heat_map, lines
from grafana.queries import BY_POD, POD, Query, buckets, in_range, mean, quantile, quantiles, rate, total
from grafana.variables import gpu_model

_POD = "{{pod}}"


def _throughput() -> Section:
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
                        "none",
                        Note(
                            "Tokens generated, over all sequences of a pod.",
                            "alike on all pods; levels off when a pod is full.",
                            "one pod below its peers: its batch and step time, then its node.",
                        ),
                        [Query(rate("pagedserve_generation_tokens_total", BY_POD), _POD)],
                        stacked=True,
                        links=[panel("Service overview", 32, "Service overview: tokens a second")],
                    ),
                    lines(
                        11,
                        "Tokens computed a second: prompt and answer",
                        "none",
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
                        [Query(rate("pagedserve_requests_total", BY_POD), _POD)],
                        stacked=True,
                    ),
                ],
            )
        ],
    )


def _batch() -> Section:
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
                        [Query(total("pagedserve_requests_running", BY_POD), _POD)],
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


def _steps() -> Section:
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
                        [Query(rate("pagedserve_engine_step_seconds_sum", BY_POD), _POD)],
                        soft_top=1,
                    ),
                ],
            )
        ],
    )


def _queue() -> Section:
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
                        [Query(total("pagedserve_requests_waiting", BY_POD), _POD)],
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
                        [Query(total("pagedserve_waiting_prompt_tokens", BY_POD), _POD)],
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


def _kv_cache() -> Section:
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
                            Query(f"max by ({BY_POD}) (pagedserve_kv_cache_usage_ratio{{{POD}}})", f"{_POD} used"),
                            Query(f"max by ({BY_POD}) (pagedserve_kv_cache_waste_ratio{{{POD}}})", f"{_POD} wasted"),
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
                        [Query(f"{hit_tokens}\n/\n({query_tokens} > 0)", _POD)],
                        top=1,
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
                        [Query(rate("pagedserve_preemptions_total", BY_POD), _POD)],
                        steps=((None, "green"), (0.1, "red")),
                        soft_top=0.2,
                        links=[runbook("PagedServePreemptionStorm")],
                    ),
                ],
            )
        ],
    )


def _latency() -> Section:
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
                        [Query(quantile(0.95, "pagedserve_time_to_first_token_seconds", BY_POD), _POD)],
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
                        [Query(quantile(0.99, "pagedserve_inter_token_latency_seconds", BY_POD), _POD)],
                        steps=((None, "green"), (0.25, "red")),
                        links=[runbook("PagedServeInterTokenSLOBurn")],
                    ),
                ],
            ),
        ],
    )


def _lengths() -> Section:
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


def _process() -> Section:
    return Section(
        107,
        "Server process",
        [
            Line(
                8,
                [
                    lines(
                        80,
                        "CPU of the server process, by pod",
                        "none",
                        Note(
                            "Cores that the front process uses: HTTP, gRPC, tokenising, metrics. The engine has "
                            "its own process.",
                            "below 1: it runs on one core, and at 1 every stream waits for it.",
                            "near 1: more replicas, or cut off access logs.",
                        ),
                        [Query(rate("process_cpu_seconds_total", BY_POD), _POD)],
                        steps=((None, "green"), (0.9, "red")),
                        soft_top=1,
                    ),
                    lines(
                        81,
                        "Memory of the server process, by pod",
                        "bytes",
                        Note(
                            "Resident memory of the front process.",
                            "flat after the first minutes.",
                            "steady growth is a leak: report it, and restart the pod before its limit.",
                        ),
                        [Query(f"max by ({BY_POD}) (process_resident_memory_bytes{{{POD}}})", _POD)],
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
                        [Query(f"max by ({BY_POD}) (scrape_duration_seconds{{{POD}}})", _POD)],
                        steps=((None, "green"), (1, "yellow"), (10, "red")),
                        links=[runbook("PagedServeScrapeFailed")],
                    ),
                ],
            )
        ],
        collapsed=True,
    )


def engine() -> Board:
    return Board(
        title="Engine",
        description="What the engines do: batches, steps, queue, KV cache, latency, lengths. Choose a pod to see one.",
        since="1h",
        variables=(gpu_model(),),
        sections=[
            _throughput(),
            _batch(),
            _steps(),
            _queue(),
            _kv_cache(),
            _latency(),
            _lengths(),
            _process(),
            gpus(108, 90),
        ],
        events=(ALERT, ROLL_OUT, SCALE_UP, SCALE_DOWN),
    )
