"""Tasks that no method was chosen on: two benchmarks made by others, and tasks that a user is likely to try."""

from abcnb.other_tasks import chomsky, further, huang  # noqa: F401  they register their tasks, in this order
