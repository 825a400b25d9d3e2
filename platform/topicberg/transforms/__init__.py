"""Tables computed from tables: windows, upsert views, publishing back to Kafka, EMR jobs."""
