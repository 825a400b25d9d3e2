"""The formats of records: the columns of a schema, and what decodes a record.

======================  ====================================================================
``table.py``            the formats that there are: a format is one row of it
``contract.py``         the functions that the module of a format has
``dispatch.py``         the functions of a registered schema's format
``avro/``, …            the formats
``columnar/``           compiled code that decodes many records at once
``framing.py``          how a record names its schema
``subjects.py``         schemas as the registry has them
``limits.py``           the limits of schemas, the same for all formats
======================  ====================================================================
"""
