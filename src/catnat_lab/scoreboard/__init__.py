"""The paper's five tables and its claims, each beside what was measured here. Every mark is computed from the runs."""
