"""Outputs that a model gets wrong, digit by digit."""

from dataclasses import dataclass
from html import escape

from abcnb.model.decoding import write_outputs
from abcnb.model.evaluation import count_errors, test_inputs
from abcnb.model.transformer import Transformer
from abcnb.pipeline import check_data
from abcnb.tasks.tokens import decode
from abcnb.tasks.training_data import TrainingData

SHOWN = 3


@dataclass(frozen=True)
class WrongOutputs:
    """A few wrong outputs of a test; a notebook shows them with their wrong digits marked."""

    title: str  # how many samples of which test were wrong
    rows: tuple[tuple[str, str, str], ...]  # source of each, then output and label, units first, as texts

    def __repr__(self) -> str:
        lines = [self.title]
        for source, written, true in self.rows:
            marks = "".join(" " if a == b else "^" for a, b in zip(written, true, strict=True))
            lines += ["", f"source   {source}", f"written  {written}", f"true     {true}", f"         {marks}"]
        return "\n".join(map(str.rstrip, lines))

    def _repr_html_(self) -> str:
        html = f"<p>{escape(self.title)}</p>"
        wrong = '<b style="color:#b3261e;text-decoration:underline">{}</b>'
        for source, written, true in self.rows:
            pairs = zip(map(escape, written), map(escape, true), strict=True)
            digits = "".join(a if a == b else wrong.format(a) for a, b in pairs)
            html += f"<pre>source   {escape(source)}\nwritten  {digits}\ntrue     {escape(true)}</pre>"
        return html


def wrong_outputs(
    model: Transformer, data: TrainingData, length: int, samples: int = 500, test_set: str = "random"
) -> WrongOutputs:
    """The first few wrong outputs of a test at one length, decoded greedily; otherwise as `abcnb.evaluate`."""
    check_data(data, model)
    task, form = data.task, data.form
    rows, wrong, total = [], 0, 0
    for operands in test_inputs(task, length, samples, test_set, data.width).values():
        errors = count_errors(model, task, operands, form)
        total, wrong = total + len(errors), wrong + int((errors > 0).sum())
        for n in errors.nonzero().flatten().tolist()[: SHOWN - len(rows)]:
            batch = task.batch(tuple(o[n : n + 1] for o in operands), form)
            texts = batch.source, write_outputs(model, batch), batch.target
            rows.append(tuple(decode(ids[0]) for ids in texts))
    return WrongOutputs(f"{wrong:,} of {total:,} {test_set} samples wrong at {length} digits", tuple(rows))
