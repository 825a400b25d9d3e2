import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.Serializable;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericRecord;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.formats.avro.AvroRowDataDeserializationSchema;
import org.apache.flink.formats.avro.AvroToRowDataConverters;
import org.apache.flink.formats.avro.RegistryAvroDeserializationSchema;
import org.apache.flink.formats.avro.SchemaCoder;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.data.GenericArrayData;
import org.apache.flink.table.data.GenericMapData;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.util.Collector;
import org.apache.iceberg.DistributionMode;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.flink.CatalogLoader;
import org.apache.iceberg.flink.FlinkSchemaUtil;
import org.apache.iceberg.flink.TableLoader;
import org.apache.iceberg.flink.sink.IcebergSink;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;

/**
 * Apache Flink as a contender of the ingest benchmark: Kafka to Iceberg, one job a line of stdin.
 *
 * <p>The cluster and its JVM stay up between jobs. The first line of stdin describes the cluster:
 * {@code {"parallelism", "catalog": {…}, "kafka": {…}}}; each further one a job: {@code {"topic",
 * "namespace", "table", "decoder", "schema"}}. A line of stdout answers each of them.
 */
public final class FlinkIngest {
  private static final int CHECKPOINT_MS = 10_000;
  private static final int WIRE_BYTES = 5;

  private FlinkIngest() {}

  public static void main(String[] arguments) throws Exception {
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    ObjectMapper json = new ObjectMapper();
    JsonNode cluster = json.readTree(lines.readLine());
    int parallelism = cluster.get("parallelism").asInt();
    CatalogLoader catalog =
        CatalogLoader.custom(
            "benchmark",
            texts(cluster.get("catalog")),
            new org.apache.hadoop.conf.Configuration(),
            "org.apache.iceberg.rest.RESTCatalog");
    MiniClusterConfiguration configuration =
        new MiniClusterConfiguration.Builder()
            .setNumTaskManagers(1)
            .setNumSlotsPerTaskManager(parallelism)
            .build();
    try (MiniCluster flink = new MiniCluster(configuration)) {
      flink.start();
      System.out.println("ready");
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        try {
          run(flink, parallelism, catalog, texts(cluster.get("kafka")), json.readTree(line));
          System.out.println("done");
        } catch (Exception error) {
          error.printStackTrace();
          System.out.println("failed: " + error);
        }
      }
    }
  }

  private static Map<String, String> texts(JsonNode node) {
    Map<String, String> found = new HashMap<>();
    node.properties().forEach(entry -> found.put(entry.getKey(), entry.getValue().asText()));
    return found;
  }

  private static void run(
      MiniCluster flink, int parallelism, CatalogLoader catalog, Map<String, String> kafka, JsonNode job)
      throws Exception {
    TableLoader loader =
        TableLoader.fromCatalog(
            catalog, TableIdentifier.of(job.get("namespace").asText(), job.get("table").asText()));
    loader.open();
    Table table = loader.loadTable();
    RowType rows = FlinkSchemaUtil.convert(table.schema());
    StreamExecutionEnvironment env =
        StreamExecutionEnvironment.createLocalEnvironment(parallelism, new Configuration());
    env.getConfig().enableObjectReuse();
    env.enableCheckpointing(CHECKPOINT_MS);
    Properties properties = new Properties();
    properties.putAll(kafka);
    KafkaSource<RowData> source =
        KafkaSource.<RowData>builder()
            .setTopics(job.get("topic").asText())
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setBounded(OffsetsInitializer.latest())
            .setProperties(properties)
            .setDeserializer(
                new Rows(rows, decoder(job, rows), job.get("topic").asText()))
            .build();
    IcebergSink.forRowData(
            env.fromSource(source, WatermarkStrategy.noWatermarks(), "kafka")
                .returns(InternalTypeInfo.of(rows)))
        .table(table)
        .tableLoader(loader)
        .distributionMode(DistributionMode.NONE)
        .writeParallelism(parallelism)
        .append();
    flink.executeJobBlocking(env.getStreamGraph().getJobGraph());
  }

  private static Decoder decoder(JsonNode job, RowType rows) {
    return switch (job.get("decoder").asText()) {
      case "small" -> new Small();
      case "wide" -> new Wide();
      default -> new OwnClasses(job.get("schema").asText(), rows);
    };
  }

  /** Fills the fields of a record's value into a row. */
  private interface Decoder extends Serializable {
    default void open(DeserializationSchema.InitializationContext context) throws Exception {}

    void decode(byte[] value, GenericRowData row) throws IOException;
  }

  /** Rows of the key, the fields of the value, and the metadata, as plain Spark's are. */
  private static final class Rows implements KafkaRecordDeserializationSchema<RowData> {
    private static final int METADATA = 6;
    private final RowType rows;
    private final Decoder decoder;
    private final String topic;
    private transient GenericRowData row;
    private transient StringData topicName;
    private transient StringData[] timestampTypes;

    Rows(RowType rows, Decoder decoder, String topic) {
      this.rows = rows;
      this.decoder = decoder;
      this.topic = topic;
    }

    @Override
    public void open(DeserializationSchema.InitializationContext context) throws Exception {
      decoder.open(context);
      row = new GenericRowData(rows.getFieldCount());
      topicName = StringData.fromString(topic);
      timestampTypes = new StringData[] {StringData.fromString("0"), StringData.fromString("1")};
    }

    @Override
    public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<RowData> out)
        throws IOException {
      row.setField(0, record.key());
      try {
        decoder.decode(record.value(), row);
      } catch (RuntimeException malformed) {
        return;
      }
      int at = row.getArity() - METADATA;
      row.setField(at, topicName);
      row.setField(at + 1, record.partition());
      row.setField(at + 2, headers(record));
      row.setField(at + 3, record.offset());
      row.setField(at + 4, TimestampData.fromEpochMillis(record.timestamp()));
      row.setField(at + 5, timestampTypes[record.timestampType().id]);
      out.collect(row);
    }

    private static GenericMapData headers(ConsumerRecord<byte[], byte[]> record) {
      Map<StringData, byte[]> found = null;
      for (Header header : record.headers()) {
        found = found == null ? new HashMap<>() : found;
        found.put(StringData.fromString(header.key()), header.value());
      }
      return found == null ? null : new GenericMapData(found);
    }

    @Override
    public TypeInformation<RowData> getProducedType() {
      return InternalTypeInfo.of(rows);
    }
  }

  // --- Flink's own Avro classes, as the format avro-confluent of Flink SQL uses them ---

  private static final class OwnClasses implements Decoder {
    private final AvroRowDataDeserializationSchema schema;
    private final int fields;

    OwnClasses(String text, RowType rows) {
      fields = rows.getFieldCount() - 1 - Rows.METADATA;
      RowType type = new RowType(rows.getFields().subList(1, 1 + fields));
      schema =
          new AvroRowDataDeserializationSchema(
              new RegistryAvroDeserializationSchema<>(
                  GenericRecord.class, new Schema.Parser().parse(text), new KnownSchema(text)),
              AvroToRowDataConverters.createRowConverter(type),
              InternalTypeInfo.of(type));
    }

    @Override
    public void open(DeserializationSchema.InitializationContext context) throws Exception {
      schema.open(context);
    }

    @Override
    public void decode(byte[] value, GenericRowData row) throws IOException {
      GenericRowData found = (GenericRowData) schema.deserialize(value);
      for (int number = 0; number < fields; number++) {
        row.setField(1 + number, found.getField(number));
      }
    }
  }

  /**
   * Stands for the registry's client, which is not on Maven Central: it has one schema and no
   * look-up, so that it costs less than the client.
   */
  private record KnownSchema(String text) implements SchemaCoder.SchemaCoderProvider {
    @Override
    public SchemaCoder get() {
      Schema schema = new Schema.Parser().parse(text);
      return new SchemaCoder() {
        @Override
        public Schema readSchema(InputStream in) throws IOException {
          in.skipNBytes(WIRE_BYTES);
          return schema;
        }

        @Override
        public void writeSchema(Schema ignored, java.io.OutputStream out) {
          throw new UnsupportedOperationException();
        }
      };
    }
  }

  // --- hand-written: no schema ids; what ends too early is left out ---

  /** Reads Avro's binary encoding. */
  private static final class Input {
    private byte[] bytes;
    private int at;

    void reset(byte[] value) {
      bytes = value;
      at = WIRE_BYTES;
    }

    long number() {
      long found = 0;
      for (int shift = 0; ; shift += 7) {
        byte next = bytes[at++];
        found |= (long) (next & 0x7f) << shift;
        if (next >= 0) {
          return (found >>> 1) ^ -(found & 1);
        }
      }
    }

    StringData text() {
      int size = (int) number();
      at += size;
      if (size < 0 || at > bytes.length) { // copyOfRange would fill it up
        throw new IndexOutOfBoundsException(at);
      }
      return StringData.fromBytes(Arrays.copyOfRange(bytes, at - size, at));
    }

    boolean flag() {
      return bytes[at++] != 0;
    }

    double real() {
      long bits = 0;
      for (int number = 0; number < 8; number++) {
        bits |= (bytes[at++] & 0xffL) << (8 * number);
      }
      return Double.longBitsToDouble(bits);
    }
  }

  private static final class Small implements Decoder {
    private transient Input in;

    @Override
    public void open(DeserializationSchema.InitializationContext context) {
      in = new Input();
    }

    @Override
    public void decode(byte[] value, GenericRowData row) {
      in.reset(value);
      row.setField(1, in.text()); // side
      row.setField(2, (int) in.number()); // quantity
      row.setField(3, in.text()); // symbol
      row.setField(4, (int) in.number()); // price
      row.setField(5, in.text()); // account
      row.setField(6, in.text()); // userid
    }
  }

  private static final class Wide implements Decoder {
    private transient Input in;
    private transient GenericRowData venue;

    @Override
    public void open(DeserializationSchema.InitializationContext context) {
      in = new Input();
      venue = new GenericRowData(4);
    }

    @Override
    public void decode(byte[] value, GenericRowData row) {
      in.reset(value);
      row.setField(1, in.text()); // order_id
      row.setField(2, in.text()); // account
      row.setField(3, in.text()); // symbol
      row.setField(4, in.text()); // side
      row.setField(5, (int) in.number()); // quantity
      row.setField(6, in.real()); // price
      row.setField(7, in.number()); // amount
      row.setField(8, in.flag()); // is_margin
      row.setField(9, in.number()); // created
      row.setField(10, in.number()); // sequence
      row.setField(11, in.text()); // trader
      row.setField(12, in.text()); // description
      row.setField(13, in.text()); // remarks
      row.setField(14, in.number() == 0 ? null : in.text()); // comment
      venue.setField(0, in.text()); // name
      venue.setField(1, in.text()); // country
      venue.setField(2, in.real()); // latency
      venue.setField(3, (int) in.number()); // priority
      row.setField(15, venue);
      row.setField(16, tags());
    }

    private GenericArrayData tags() {
      Object[] found = new Object[8];
      int count = 0;
      for (long size = in.number(); size != 0; size = in.number()) {
        if (size < 0) { // a block that has its size in bytes
          size = -size;
          in.number();
        }
        if (count + size > found.length) {
          found = Arrays.copyOf(found, (int) (2 * (count + size)));
        }
        for (long number = 0; number < size; number++) {
          found[count++] = in.text();
        }
      }
      return new GenericArrayData(Arrays.copyOf(found, count));
    }
  }
}
