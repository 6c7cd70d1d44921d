"""Rules: what a topic's rows must keep, asked of the rows that are staged, before anyone can read them.

Each kind has one engine: Arrow for those of single rows, Spark for all others. Its verdict is found once and goes on as
plain data: the records that are refused are named by partition and offset.
"""
