"""Used until engine.output.processor is there; then removed."""

from types import SimpleNamespace

from engine.messages import SequenceId
from engine.outputs import PositionLogprobs, SequenceDelta, TokenLogprob


class OutputProcessor:
    def __init__(self, tokenizer):
        self.tokenizer, self.requests = tokenizer, {}

    def add(self, request):
        self.requests[request.request_id] = {i: [] for i in range(request.params.n)}, request

    def abort(self, request_id):
        states, _ = self.requests.pop(request_id, ({}, None))
        return [SequenceId(f"{request_id}/{i}") for i in states]

    def process(self, outputs):
        result = SimpleNamespace(deltas=[], to_abort=[])
        for o in outputs:
            request_id, _, index = o.sequence_id.rpartition("/")
            if request_id not in self.requests:
                continue
            logprobs = None
            if o.logprobs is not None:
                tok = lambda i, lp: TokenLogprob(i, lp, self.tokenizer.token_text(i), self.tokenizer.token_bytes(i))  # noqa
                logprobs = tuple(
                    PositionLogprobs(tok(r.token_id, r.logprob), tuple(map(tok, r.top_ids, r.top_logprobs)), 0)
                    for r in o.logprobs
                )
            text = self.tokenizer.decode(o.token_ids)
            result.deltas.append(
                (request_id, SequenceDelta(int(index), text, o.token_ids, logprobs, o.finish_reason, None))
            )
        return result
