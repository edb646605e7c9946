"""E40: the same faults on Ropeway and its Python peers, as they come and as safe as their own pages make them.

Environments, empty stores, worker groups and the talk with a peer's program are those of `bench.peers`; the
programs here add one handler to the ones there. What is counted comes from a ledger that handlers append to,
outside every engine; what the engine says is only asked where it says "not finished yet".
"""
