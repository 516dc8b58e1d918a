"""Where a token is: encodings added to the stream, and rotations of queries and keys."""

from manyheads.positions.axes import Axes as Axes
from manyheads.positions.axes import Axial as Axial
from manyheads.positions.axes import Sections as Sections
from manyheads.positions.learned import Learned as Learned
from manyheads.positions.longrope import LongRoPE as LongRoPE
from manyheads.positions.rotary import Rotary as Rotary
from manyheads.positions.rotation import rotate as rotate
from manyheads.positions.scaling import DynamicNTKScaling as DynamicNTKScaling
from manyheads.positions.scaling import LinearScaling as LinearScaling
from manyheads.positions.scaling import Llama3Scaling as Llama3Scaling
from manyheads.positions.scaling import NTKScaling as NTKScaling
from manyheads.positions.scaling import Scaling as Scaling
from manyheads.positions.sinusoidal import Sinusoidal as Sinusoidal
from manyheads.positions.turn import Turn as Turn
from manyheads.positions.yarn import YaRN as YaRN
