"""One run, step by step: plan, read, decode, stage, audit, publish, report."""
