"""Decoding of many records at once, into Arrow, without an object for each record or value.

A *program* says how the bytes of one writer's records become columns. It is a list of simple
instructions, which compiled code (Numba) executes for each record. There is a program only where
the result is known to be the one of the format's Spark expression: a schema or a value that is
not covered is reported, and Spark decodes its records.

======================  ====================================================================
``program.py``          places of values (buffers of Arrow columns), and the instructions
``decoding.py``         decodes records by programs
``avro.py``             executes programs for Avro's binary encoding
``protobuf_reader.py``  executes programs for Protobuf
``json_reader.py``      executes programs for JSON, with ``json_text`` and ``json_numbers``
``records.py``          how a record begins and ends, for all of them
``memory.py``           reads and writes at addresses, for compiled code
``columns.py``          the buffers that programs fill, and the Arrow columns they become
``check.py``            compiles what executes programs, and checks it
======================  ====================================================================
"""
