"""What a block keeps for its backward pass and what it computes again.

A block's forward and backward pass are captured together as one list of operations (`capture`). From what the
backward part reads, and from the bytes and cost of each operation, follows which results are worth keeping
(`choose`); two functions are then cut out of the list, one for each pass (`split`), and take the place of the block's
own forward (`blocks`). Results that no backward operation reads are never computed twice.
"""
