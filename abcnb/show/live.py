"""What a reader sees of a model while it trains."""

from IPython import get_ipython
from IPython.core.pylabtools import print_figure
from IPython.display import DisplayHandle
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from abcnb.model.evaluation import percent
from abcnb.show.style import line_style, themed


class LiveCurve:
    """A learning curve of the model `title` that grows as it trains: pass it as `on_validation`.

    It is redrawn in place, and its last state stays. Without a Jupyter kernel it does nothing.
    """

    def __init__(self, title: str):
        self.title, self._handle = title, DisplayHandle()
        self._show = self._handle.display  # the first time; later it is updated

    def __call__(self, history: list[dict]) -> None:
        """Show the records so far: step, seconds, loss, exact_match (percent)."""
        if getattr(get_ipython(), "kernel", None) is None:
            return
        described = self.describe(history)
        picture = print_figure(learning_curve(history, described), bbox_inches=None, base64=True, dpi=100)
        self._show({"image/png": picture, "text/plain": described}, raw=True)
        self._show = self._handle.update

    def describe(self, history: list[dict]) -> str:
        """The last record, in one line."""
        step, seconds, exact = (history[-1][key] for key in ("step", "seconds", "exact_match"))
        return f"{self.title}: {step} steps, {percent(exact)}% exact match in validation, {seconds:.0f} s"


@themed()
def learning_curve(history: list[dict], title: str) -> Figure:
    """Validation exact match and training loss against steps, in a figure that pyplot does not know of."""
    figure = Figure(figsize=(7.2, 2.6), layout="constrained")
    of = {key: [record[key] for record in history] for key in ("step", "exact_match", "loss")}
    for number, (axis, key) in enumerate(zip(figure.subplots(1, 2), ("exact_match", "loss"), strict=True)):
        axis.plot(of["step"], of[key], markersize=4.5, **line_style(number))
        axis.set(xlabel="optimizer steps", xlim=(0, None))
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    figure.axes[0].set(ylabel="validation exact match (%)", ylim=(-3, 103))
    # On a logarithmic axis that spans less than a decade the ticks cannot be read.
    scale = "log" if max(of["loss"]) > 10 * min(of["loss"]) > 0 else "linear"
    figure.axes[1].set(ylabel="training loss", yscale=scale)
    figure.suptitle(title)
    return figure
