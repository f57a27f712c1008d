"""Find, mask and compare visual retrieval heads of vision-language models."""
