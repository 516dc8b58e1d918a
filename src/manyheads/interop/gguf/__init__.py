"""Models in GGUF files, as ours."""

from manyheads.interop.gguf.decoder import decoder_of, from_gguf
from manyheads.interop.gguf.file import GGUFFile, read_gguf
from manyheads.interop.gguf.tokenizer import tokenizer_of

__all__ = ["GGUFFile", "decoder_of", "from_gguf", "read_gguf", "tokenizer_of"]
