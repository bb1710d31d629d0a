"""Admission: bounds, one decision a batch, and when to try again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from engine.errors import InvalidParameterError, OverloadedError
from engine.inputs import GenerationRequest
from engine.sampling_params import SamplingParams
from predictor.admission import Admission
from tests.fake_engine import FakeEngine
from tests.predictor.openai.asgi_client import until


@dataclass
class Queue:
    num_waiting: int = 0
    num_waiting_prompt_tokens: int = 0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def request(num_tokens: int = 4, n: int = 1) -> GenerationRequest:
    return GenerationRequest("id", None, tuple(range(num_tokens)), SamplingParams(n=n), 1, 0.0)


def make(queue: Queue, requests: int = 10, tokens: int | None = None, clock: Clock | None = None) -> Admission:
    return Admission(queue, max_waiting_requests=requests, max_waiting_tokens=tokens, clock=clock or Clock())


def test_takes_up_to_the_bound_and_not_one_more() -> None:
    queue = Queue(num_waiting=9)
    admission = make(queue)
    admission.check([request()])
    queue.num_waiting = 10
    with pytest.raises(OverloadedError, match="10 requests are waiting") as caught:
        admission.check([request()])
    assert caught.value.reason == "waiting_requests"
    assert caught.value.retry_after >= 1


def test_a_request_with_n_counts_as_n() -> None:
    admission = make(Queue(num_waiting=8))
    with pytest.raises(OverloadedError):
        admission.check([request(n=3)])
    admission.check([request(n=2)])


def test_a_batch_is_taken_whole_or_refused_whole() -> None:
    admission = make(Queue(num_waiting=7))
    with pytest.raises(OverloadedError):
        admission.check([request(), request(), request(), request()])
    admission.check([request(), request(), request()])


def test_a_batch_that_can_never_fit_is_the_callers_mistake() -> None:
    with pytest.raises(InvalidParameterError, match=r"11 sequences.*at most 10"):
        make(Queue()).check([request(n=11)])
    with pytest.raises(InvalidParameterError, match=r"11 sequences.*at most 10"):
        make(Queue()).check_room(11, underway=0)


def test_token_bound() -> None:
    admission = make(Queue(num_waiting=1, num_waiting_prompt_tokens=90), tokens=100)
    admission.check([request(10)])
    with pytest.raises(OverloadedError, match="90 prompt tokens are waiting") as caught:
        admission.check([request(11)])
    assert caught.value.reason == "waiting_tokens"


def test_a_prompt_over_the_token_bound_is_taken_when_nothing_waits() -> None:
    make(Queue(), tokens=100).check([request(150)])


def test_retry_after_follows_the_rate_at_which_the_queue_empties() -> None:
    queue, clock = Queue(), Clock()
    admission = make(queue, requests=100, clock=clock)
    for _ in range(100):
        admission.check([request()])
        queue.num_waiting += 1
    clock.now += 10
    queue.num_waiting = 80  # 20 left in 10 s: 2 a second
    admission.check([request()])
    queue.num_waiting = 80
    assert admission.retry_after() == pytest.approx(20, abs=1)  # half of 80 at 2 a second


def test_retry_after_is_bounded_and_has_a_default_without_history() -> None:
    queue, clock = Queue(num_waiting=10), Clock()
    admission = make(queue, clock=clock)
    assert admission.retry_after() == 5
    admission._num_accepted = 10_000
    admission._departures.append((clock.now - 1, 0))
    assert admission.retry_after() == 1
    queue.num_waiting = 9_999
    assert admission.retry_after() == 60


def test_only_the_last_seconds_count() -> None:
    queue, clock = Queue(), Clock()
    admission = make(queue, requests=1000, clock=clock)
    for _ in range(200):
        admission.check([request()])
        clock.now += 1
    assert len(admission._departures) <= 32


TENSOR = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hi"]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 2}),
        ("/openai/v1/completions", {"prompt": "Hi", "max_tokens": 2, "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}),
        ("/v1/models/model:predict", {"instances": ["Hi"]}),
        ("/v2/models/model/infer", {"inputs": [TENSOR]}),
        ("/v2/models/model/versions/1/generate", {"text_input": "Hi"}),
        ("/v2/models/model/generate_stream", {"text_input": "Hi"}),
    ],
)
async def test_M7_fifty_at_once_with_room_for_ten(make_app, path: str, body: object) -> None:  # type: ignore[no-untyped-def]
    engine = FakeEngine(admitting=False)
    app = make_app(engine, max_waiting_requests=10)
    exchanges = [app.client.open(path, body) for _ in range(50)]
    await until(lambda: sum(e.task.done() for e in exchanges) == 40)
    refused = [e.answer for e in exchanges if e.task.done()]
    assert len(refused) == 40
    assert {a.status for a in refused} == {429}
    assert all(int(a.headers["retry-after"]) >= 1 for a in refused)
    assert engine.num_waiting == 10
    assert app.value("requests_rejected_total", reason="waiting_requests") == 40
    assert (await app.client.get("/v2/health/live")).status == 200  # M6: a full queue is not sickness
    engine.release()
    answers = [await e.done() for e in exchanges]
    assert all("overloaded" in str(a.json["error"]) for a in refused)
    assert sum(a.status == 200 for a in answers) == 10
