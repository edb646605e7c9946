"""The fault programme: real processes, real faults, and a checker that reads what they wrote down."""
