"""Models of Hugging Face, and ours."""
