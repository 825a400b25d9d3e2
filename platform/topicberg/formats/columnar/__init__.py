"""Decoding of many records at once, into Arrow, without an object for each record or value.

A *program* says how the bytes of one writer's records become columns. It is a list of simple
instructions, which compiled code (Numba) executes for each record. It may refuse any record, which
the format's reference decoder then decodes alone; what it accepts is what the reference reads.

======================  ====================================================================
``program.py``          places of values (buffers of Arrow columns), and the instructions
``decoding.py``         decodes records by programs, which the readers of the formats execute:
``avro.py``             reads a record in Avro's binary encoding
``protobuf_reader.py``  reads a record of Protobuf
``json_reader.py``      reads a record of JSON, with the other ``json_*.py``
``records.py``          what these share: ends of values, UTF-8, keys of a map
``decimals.py``         decimals of 128 bits
``times.py``            texts of days and times
``memory.py``           reads and writes at addresses, for compiled code
``columns.py``          the buffers that programs fill, and the Arrow columns they become
``check.py``            compiles what executes programs, and checks it
======================  ====================================================================
"""
