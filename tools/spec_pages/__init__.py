"""The pages of the format reference: templates and checked statements in, Markdown and CSV out."""
