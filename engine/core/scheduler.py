"""Forms the steps."""

from __future__ import annotations

from bisect import insort

from engine.core.block_pool import BlockPool
from engine.core.finish import FinishRules
from engine.core.plan import ScheduledSequence, StepPlan, StepResult
from engine.core.policy import AgingPolicy
from engine.core.request import Request, Status
from engine.core.waiting_queue import WaitingQueue
from engine.messages import FinishReason, RawLogprobs, SequenceId, SequenceOutput


class Scheduler:
    """Decides which tokens of which requests a step computes, and who holds the blocks for them.

    A request is in the queue (WAITING, PREEMPTED: holds no blocks), in the running list, on its way out with a last
    token to come (ENDING: holds no blocks), or gone (FINISHED).

    `schedule` may be called again before `update` has brought the result of the plan before: then the requests of that
    plan have a pending token each (`Request.num_pending`), and go on with it.
    """

    def __init__(
        self,
        pool: BlockPool,
        policy: AgingPolicy,
        finish_rules: FinishRules,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        """max_num_seqs, max_num_batched_tokens: bounds of one step. The pool must hold any one request whole."""
        self._pool = pool
        self._policy = policy
        self._finish_rules = finish_rules
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._watermark = max(1, pool.num_blocks // 100)
        self._requests: dict[SequenceId, Request] = {}
        self._waiting = WaitingQueue(policy)
        self._running: list[Request] = []
        """In the policy's order; the last one is the first to be preempted."""
        self._ending: list[Request] = []
        """Those whose last step the last plan holds: certain to end by length when it is done."""
        self._removed: list[SequenceId] = []
        self._admitted: list[Request] = []
        self._preempted: list[SequenceId] = []
        self._resumed: list[SequenceId] = []
        self.preemptions_total = 0
        self.prefix_query_tokens_total = 0
        self.prefix_hit_tokens_total = 0

    # --- what the engine core asks -----------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_waiting_prompt_tokens(self) -> int:
        return self._waiting.num_prompt_tokens

    @property
    def num_slots_filled(self) -> int:
        """Slots of the used blocks that hold a computed token; shared blocks, which are always full, count once."""
        num_held = sum(request.num_computed_tokens for request in self._running)
        return num_held - self._pool.num_repeated * self._pool.block_size

    def has_requests(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request) -> None:
        """Puts a new request into the queue. Raises `ValueError` when its id is in use."""
        if request.sequence_id in self._requests:
            raise ValueError(f"sequence id {request.sequence_id!r} is in use; give each sequence its own")
        assert request.status is Status.WAITING
        self._requests[request.sequence_id] = request
        self._waiting.push(request)

    def abort(self, sequence_id: SequenceId) -> bool:
        """Drops a sequence in whatever state; False when it is unknown or has finished."""
        request = self._requests.get(sequence_id)
        if request is None:
            return False
        self._finish(request, "abort")
        return True

    def preempt(self, request: Request) -> None:
        """Takes a running request's blocks for others; it keeps its tokens and goes to the head of the queue.

        A token of it that is still being computed counts when it arrives, and it is not admitted again before that.
        """
        assert request.status is Status.RUNNING
        self._release(request, Status.PREEMPTED)
        self._waiting.push(request)
        self._preempted.append(request.sequence_id)
        request.num_preemptions += 1
        self.preemptions_total += 1

    def reset_prefix_cache(self) -> None:
        """Nothing computed so far is a prefix hit from now on. Running requests go on."""
        self._pool.reset_prefix_cache()

    def take_admitted(self) -> list[Request]:
        """The requests admitted for the first time since the last call."""
        admitted, self._admitted = self._admitted, []
        return admitted

    def take_preempted(self) -> list[SequenceId]:
        """The sequences preempted since the last call, in that order; one may be there more than once."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def take_resumed(self) -> list[SequenceId]:
        """The sequences admitted again after a preemption since the last call."""
        resumed, self._resumed = self._resumed, []
        return resumed

    # --- one step ----------------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Plans the next step; empty only when no request can go on without a token that is pending.

        An empty plan is not to be run: what it would remove is named by the next one.
        """
        # NOTE: there is no prefill and no decode. Every request has tokens that are not computed yet (a prompt, the
        # rest of one, the last sampled token, be it known or pending), and a step spends one budget of tokens on
        # letting num_computed_tokens catch up with num_tokens + num_pending. Chunked prefill, prefix hits, recompute
        # after preemption, speculation and steps planned ahead are all just other distances between the two.
        self._retire_ending()
        budget = self._max_num_batched_tokens
        scheduled: list[ScheduledSequence] = []

        # NOTE: a victim comes from the end of the list, and what is planned already stands before `position`. So what a
        # step plans is never taken back, and a block that became findable in this step does get filled by it.
        position = 0
        while position < len(self._running) and budget > 0:
            request = self._running[position]
            num_new = min(request.num_tokens + request.num_pending - request.num_computed_tokens, budget)
            if self._make_room(request, request.num_computed_tokens + num_new):
                scheduled.append(self._advance(request, num_new))
                budget -= num_new
                position += 1

        # NOTE: with budget left every running request got all it wanted: no prompt is half computed while the next one
        # is admitted, so the blocks that admission finds available are promised to nobody. A victim of this step is
        # not admitted again in it: it would need more blocks than it gave back, and a part of those is taken.
        while budget > 0 and len(self._running) < self._max_num_seqs:
            admitted = self._admit_next()
            if admitted is None:
                break
            num_new = min(admitted.num_tokens - admitted.num_computed_tokens, budget)
            fits = self._pool.grow(admitted, admitted.num_computed_tokens + num_new)
            assert fits, "admission checked that the whole request fits"
            scheduled.append(self._advance(admitted, num_new))
            budget -= num_new

        removed: tuple[SequenceId, ...] = ()
        if scheduled:
            removed, self._removed = tuple(self._removed), []
        plan = StepPlan(tuple(scheduled), removed)
        self._check_plan(plan)
        return plan

    def update(self, plan: StepPlan, result: StepResult) -> list[SequenceOutput]:
        """Takes in what the oldest outstanding step brought; sequences that have ended meanwhile get nothing."""
        outputs: list[SequenceOutput] = []
        for item, token_ids, logprobs in zip(plan.scheduled, result.token_ids, result.logprobs, strict=True):
            request = item.request
            assert bool(token_ids) == item.samples, f"{request} got {len(token_ids)} tokens"
            if token_ids and not request.is_finished:
                request.num_pending -= 1
                outputs.append(self._append(request, token_ids, logprobs))
        return outputs

    def check_integrity(self) -> None:
        """Asserts everything that must hold between steps, of the pool too. O(requests + blocks)."""
        waiting = list(self._waiting)
        ending = [r for r in self._requests.values() if r.status is Status.ENDING]
        assert len(waiting) + len(self._running) + len(ending) == len(self._requests)
        assert all(self._requests[r.sequence_id] is r for r in waiting + self._running)
        assert not any(r.block_ids or r.num_computed_tokens for r in ending), "a request on its way out holds blocks"
        assert all(r.num_pending and self._finish_rules.ends_at(r, r.num_tokens + r.num_pending) for r in ending)
        assert all(r.status in {Status.WAITING, Status.PREEMPTED} for r in waiting)
        assert not any(r.block_ids or r.num_computed_tokens for r in waiting), "a waiting request holds blocks"
        assert self._waiting.num_prompt_tokens == sum(r.num_prompt_tokens for r in waiting)
        assert all(r.status is Status.RUNNING for r in self._running)
        assert self._running == sorted(self._running, key=self._policy.key)
        assert len(self._running) <= self._max_num_seqs
        for request in self._running:
            ahead = request.num_computed_tokens - request.num_tokens
            assert ahead == request.num_pending - 1 if request.num_pending else ahead < 0
            assert len(request.block_ids) == self._pool.blocks_for(request.num_computed_tokens), "slots too many or few"
        self._pool.check_integrity(self._running)
        assert 0 <= self.num_slots_filled <= self._pool.num_used * self._pool.block_size

    # --- parts of a step ---------------------------------------------------------------------------------------------

    def _retire_ending(self) -> None:
        """Takes back what requests hold whose last step runs already, so that this step can have it."""
        for request in self._ending:
            if not request.is_finished:
                self._release(request, Status.ENDING)
        self._ending.clear()

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Preempts from the end of the running list until the request has its slots; False when it fell victim too."""
        while not self._pool.grow(request, num_tokens):
            victim = self._running[-1]
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def _admit_next(self) -> Request | None:
        """Moves the head of the queue into the running list, if all of its tokens fit now."""
        request = self._waiting.peek()
        # NOTE: the head waits for its pending token with everybody behind it, as it waits for blocks: a victim of the
        # step that brings the token would not find room in this one.
        if request is None or request.num_pending:
            return None
        hit = self._pool.match(request)
        if not self._pool.can_admit(request, hit, num_spared=self._watermark if self._running else 0):
            return None
        self._waiting.pop()
        self._pool.attach(request, hit)
        request.status = Status.RUNNING
        insort(self._running, request, key=self._policy.key)
        if request.admitted_once:
            self._resumed.append(request.sequence_id)
        else:
            request.admitted_once = True
            request.num_cached_tokens = request.num_computed_tokens
            self._admitted.append(request)
            if self._pool.caches_prefixes:
                self.prefix_query_tokens_total += request.num_prompt_tokens
                self.prefix_hit_tokens_total += request.num_cached_tokens
        return request

    def _advance(self, request: Request, num_new: int) -> ScheduledSequence:
        start = request.num_computed_tokens
        end = request.num_computed_tokens = start + num_new
        samples = end == request.num_tokens + request.num_pending
        if samples:
            request.num_pending += 1
            if self._finish_rules.ends_at(request, end + 1):
                self._ending.append(request)
        return ScheduledSequence(request, start, num_new, samples)

    def _check_plan(self, plan: StepPlan) -> None:
        assert plan.scheduled or not self._requests or any(r.num_pending for r in self._requests.values()), (
            "requests are there, but none can go on"
        )
        assert plan.num_tokens <= self._max_num_batched_tokens
        assert len(plan.scheduled) <= len(self._running) <= self._max_num_seqs
        for item in plan.scheduled:
            request, end = item.request, item.start + item.num_new_tokens
            assert item.num_new_tokens > 0
            assert request.status is Status.RUNNING, "planned work was taken back"
            assert end == request.num_computed_tokens
            assert end <= request.num_tokens + 1, "more than the last input is still unknown"
            assert len(request.block_ids) == self._pool.blocks_for(end)

    # --- the end of a request ----------------------------------------------------------------------------------------

    def _append(
        self, request: Request, token_ids: tuple[int, ...], logprobs: tuple[RawLogprobs, ...] | None
    ) -> SequenceOutput:
        """Appends new tokens up to the one that ends the request."""
        # NOTE: a step that was planned ahead counts on one token.
        assert not request.num_pending or len(token_ids) == 1
        num_before, num_kept = request.num_tokens, 0
        for token_id in token_ids:
            request.token_ids.append(token_id)
            num_kept += 1
            if finish := self._finish_rules.check(request):
                request.stop_token_id = finish.stop_token_id
                self._finish(request, finish.reason)
                break
        if request.num_computed_tokens > num_before:
            self._pool.note_tokens(request, num_before)
        assert request.is_finished or request.status is not Status.ENDING, f"{request} was to end by length"
        return SequenceOutput(
            request.sequence_id,
            token_ids[:num_kept],
            None if logprobs is None else logprobs[:num_kept],
            request.finish_reason,
            request.stop_token_id,
        )

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.finish_reason = reason
        self._release(request, Status.FINISHED)
        self._requests.pop(request.sequence_id, None)

    def _release(self, request: Request, status: Status) -> None:
        """The one way out of the running list and the queue; gives the blocks back. Idempotent."""
        if request.status is Status.RUNNING:
            self._running.remove(request)
            self._removed.append(request.sequence_id)
        self._waiting.discard(request)
        self._pool.release(request)
        request.status = status
