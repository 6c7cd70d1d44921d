"""Rules: what a topic's rows must keep, asked of the rows that are staged, before anyone can read them.

A rule asks by Spark SQL, whoever wrote the rows. Its verdict is found once and goes on as plain data: the records that
are refused are named by partition and offset, and their batch is staged a second time without them.
"""
