"""The page on which trained models add in the browser: two committed models, and JavaScript that runs them."""

import base64
import json
from pathlib import Path

import torch

from abcnb.model.transformer import Transformer
from abcnb.show.pages import templates
from abcnb.study.methods import experiment
from abcnb.study.runs import Run, load_run
from abcnb.tasks.tokens import CHARACTERS

LINED, PLAIN = (experiment("addition", method).digest for method in ("abc", "vanilla"))
FIRST = "93847561029384756102938475", "6152438899706152438899"  # what the page adds when it opens


def _lines(run: Run, model: Transformer) -> list[dict]:
    """Each line with its heads and share, strongest first."""
    shares = {str(found.line): found.share for found in run.calibration().found}
    lines: dict[str, dict] = {}
    for bias in (*model.self_biases, *model.cross_biases):
        for line in bias.lines:
            known = {"segment": line.segment, "follows": list(line.follows), "offset": list(line.offset)}
            known |= {"name": str(line), "attention": bias.attention, "share": round(shares[str(line)], 3)}
            lines.setdefault(str(line), known | {"heads": []})["heads"].append(line.head)
    return sorted(lines.values(), key=lambda line: -line["share"])


def _described(run: Run) -> dict:
    """A model's sizes, the names and sizes of the weights that the page reads, these as base64, and its lines."""
    model = run.model()
    unread = ("query", "key", "norm_cross") if model.gathers else ()
    read = {name: p for name, p in model.named_parameters() if not any(part in name for part in unread)}
    packed = torch.cat([p.detach().flatten() for p in read.values()]).half().numpy().astype("<f2").tobytes()
    found = {"d": model.config.d_model, "heads": model.config.heads, "layers": len(model.decoder)}
    found |= {"vocabulary": model.head.out_features, "names": [[name, p.numel()] for name, p in read.items()]}
    found["weights"] = base64.b64encode(packed).decode("ascii")
    return found | {"lines": _lines(run, model) if model.gathers else []}


def try_page(reports: Path) -> str:
    """The page as HTML, which needs no network; empty if the reports folder does not have the models."""
    folders = [reports / "models" / name for name in (LINED, PLAIN)]
    if not all(folder.is_dir() for folder in folders):
        return ""
    lined, plain = map(load_run, folders)
    data = {"lined": _described(lined), "plain": _described(plain), "characters": CHARACTERS}
    data |= {"width": lined.experiment.train_width, "first": FIRST, "tau": lined.experiment.tau}
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return templates.get_template("try.html.j2").render(title="Add in your browser", data=text)
