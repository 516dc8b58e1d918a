"""Where a token is: encodings added to the stream, and rotations of queries and keys."""

from manyheads.positions.learned import Learned as Learned
from manyheads.positions.rotary import Rotary as Rotary
from manyheads.positions.rotation import rotate as rotate
from manyheads.positions.sinusoidal import Sinusoidal as Sinusoidal
from manyheads.positions.turn import Turn as Turn
