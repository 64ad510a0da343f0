"""A real small model, SmolLM2-135M, whose K and V go through real pages."""
