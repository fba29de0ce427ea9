"""Outputs that a model gets wrong, digit by digit."""

from dataclasses import dataclass
from html import escape

from abcnb.decoding import write_outputs
from abcnb.evaluation import check_request, count_errors, test_inputs
from abcnb.model import Transformer
from abcnb.pipeline import check_data
from abcnb.tasks import Batch
from abcnb.tokens import decode
from abcnb.training_data import TrainingData


@dataclass(frozen=True)
class WrongOutputs:
    """A few wrong outputs of a test; a notebook shows them with their wrong digits marked.

    Attributes:
        title: how many samples of which test were wrong.
        rows: source, output and label of each, as texts, units first.
    """

    title: str
    rows: tuple[tuple[str, str, str], ...]

    def __repr__(self) -> str:
        lines = [self.title]
        for source, written, true in self.rows:
            marks = "".join(" " if a == b else "^" for a, b in zip(written, true, strict=True))
            lines += [
                f"\nsource   {source}",
                f"written  {written}",
                f"true     {true}",
                f"         {marks}".rstrip(),
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        wrong = '<b style="color:#b3261e;text-decoration:underline">{}</b>'
        parts = [f"<p>{escape(self.title)}</p>"]
        for source, written, true in self.rows:
            digits = [escape(a) if a == b else wrong.format(escape(a)) for a, b in zip(written, true, strict=True)]
            lines = (f"source   {escape(source)}", f"written  {''.join(digits)}", f"true     {escape(true)}")
            parts.append("<pre>" + "\n".join(lines) + "</pre>")
        return "".join(parts)


def wrong_outputs(
    model: Transformer,
    data: TrainingData,
    length: int,
    samples: int = 500,
    test_set: str = "random",
    most: int = 3,
) -> WrongOutputs:
    """The first wrong outputs of a test, written greedily.

    Args:
        model: a trained model.
        data: what it was trained on.
        length: of the operands, in digits.
        samples, test_set: as of `abcnb.evaluate`.
        most: how many of them are shown.

    Raises:
        ValueError: as of `abcnb.evaluate`.
    """
    check_data(data, model)
    task, form = data.task, data.form
    check_request(task, length, samples, test_set)
    found, wrong, total = [], 0, 0
    for operands in test_inputs(task, length, samples, test_set, data.width).values():
        errors = count_errors(model, task, operands, form)
        total, wrong = total + len(errors), wrong + int((errors > 0).sum())
        first = errors.nonzero().flatten().tolist()[: most - len(found)]
        found += [task.batch(tuple(o[n : n + 1] for o in operands), form) for n in first]
    title = f"{wrong:,} of {total:,} {test_set} samples wrong at {length} digits"
    return WrongOutputs(title, tuple(_row(model, batch) for batch in found))


def _row(model: Transformer, batch: Batch) -> tuple[str, str, str]:
    return decode(batch.source[0]), decode(write_outputs(model, batch)[0]), decode(batch.target[0])
