"""Where a token is: encodings added to the stream, rotations of queries and keys, biases."""

from manyheads.positions.alibi import ALiBi as ALiBi
from manyheads.positions.alibi import alibi_slopes as alibi_slopes
from manyheads.positions.axes import Axes as Axes
from manyheads.positions.axes import Axial as Axial
from manyheads.positions.axes import Sections as Sections
from manyheads.positions.bias import Bias as Bias
from manyheads.positions.bias import distances as distances
from manyheads.positions.learned import Learned as Learned
from manyheads.positions.longrope import LongRoPE as LongRoPE
from manyheads.positions.rotary import Rotary as Rotary
from manyheads.positions.rotation import rotate as rotate
from manyheads.positions.scaling import DynamicNTKScaling as DynamicNTKScaling
from manyheads.positions.scaling import LinearScaling as LinearScaling
from manyheads.positions.scaling import Llama3Scaling as Llama3Scaling
from manyheads.positions.scaling import NTKScaling as NTKScaling
from manyheads.positions.scaling import Scaling as Scaling
from manyheads.positions.shaw import ShawBias as ShawBias
from manyheads.positions.shaw import ShawValues as ShawValues
from manyheads.positions.sinusoidal import Sinusoidal as Sinusoidal
from manyheads.positions.t5 import T5Bias as T5Bias
from manyheads.positions.transformer_xl import TransformerXLBias as TransformerXLBias
from manyheads.positions.turn import Turn as Turn
from manyheads.positions.yarn import YaRN as YaRN
