"""Plan, point, choice of topics, state and context: all steps of a restore know these."""
