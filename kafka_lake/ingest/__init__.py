"""A run: plan, read, decode, stage, audit, publish, report; jobs, runners, continuous runs."""
