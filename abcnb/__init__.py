"""abcnb: small Transformers that learn arithmetic and generalize in length.

The idea is four functions (`pipeline`): interpolate, calibrate, retrain, evaluate. Modules of this folder are the core:
they know nothing of files of results (`study`) or of what is shown (`show`). Each states its subject in its first line.
"""

from abcnb.calibration import CalibrationConfig
from abcnb.lines import LineBias, windows
from abcnb.model import Transformer
from abcnb.model_config import ModelConfig
from abcnb.pipeline import calibrate, evaluate, interpolate, retrain
from abcnb.tasks import get_task
from abcnb.training import TrainingConfig
from abcnb.training_data import TrainingData

__version__ = "0.2.0"
__all__ = [
    "CalibrationConfig",
    "LineBias",
    "ModelConfig",
    "TrainingConfig",
    "TrainingData",
    "Transformer",
    "calibrate",
    "evaluate",
    "get_task",
    "interpolate",
    "predict",
    "retrain",
    "windows",
]


def predict(run, text, device="auto"):
    """One answer of a trained run, written token by token: `abcnb.predict("reports/models/5cd1db9831b3", "99+1")`.

    Arguments and result as of `study.predictions.predict`.
    """
    from abcnb.study.predictions import predict as of_run

    return of_run(run, text, device)
