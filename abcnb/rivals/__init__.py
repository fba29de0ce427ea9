"""What other papers do instead: position schemes, which importing this room adds to `SCHEMES`, and LoRA."""

from abcnb.model.positions import SCHEMES
from abcnb.rivals.distances import T5, Fire, Kerple, Relative, RelativeSelf
from abcnb.rivals.indexed import Abacus, Coupled, CoupledRows, Learned, Randomized
from abcnb.rivals.rotary import Rotary

SCHEMES |= {
    "rotary": Rotary,
    "relative": Relative,
    "relative-self": RelativeSelf,
    "learned": Learned,
    "randomized": Randomized,
    "abacus": Abacus,
    "coupled": Coupled,
    "t5": T5,
    "kerple": Kerple,
    "fire": Fire,
    "coupled-rows": CoupledRows,
}
