// Made kafka-4.1.1-batches.json: javac -cp '<kafka>/libs/*' Golden.java && java -cp '<kafka>/libs/*:.' Golden
// The same four records in every format, codec and timestamp type that Kafka's own classes write. Brokers before 4.0 stored magic 0 and 1.

import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.StringJoiner;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.TimestampType;

public class Golden {
    public static void main(String[] arguments) {
        StringJoiner json = new StringJoiner(",\n", "{\n", "\n}");
        for (byte magic = 0; magic < 3; magic++)
            for (CompressionType codec : CompressionType.values())
                for (TimestampType type : new TimestampType[] {TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME}) {
                    boolean append = type == TimestampType.LOG_APPEND_TIME;
                    if (magic == 0 && append || magic < 2 && codec == CompressionType.ZSTD)
                        continue;
                    MemoryRecordsBuilder batch = MemoryRecords.builder(
                        ByteBuffer.allocate(4096), magic, Compression.of(codec).build(), type, 41L, append ? 1700000009000L : -1L);
                    batch.append(1700000000000L, "k0".getBytes(), "value number zero zero zero zero zero zero zero".getBytes());
                    batch.append(1700000002000L, null, "no key".getBytes());
                    batch.append(1700000001000L, "k2".getBytes(), (byte[]) null);
                    batch.append(1700000001500L, "".getBytes(), "".getBytes());
                    ByteBuffer built = batch.build().buffer();
                    byte[] bytes = new byte[built.remaining()];
                    built.get(bytes);
                    String name = "magic" + magic + "-" + codec.name + "-" + (append ? "append" : "create");
                    json.add("  \"" + name + "\": \"" + HexFormat.of().formatHex(bytes) + "\"");
                }
        System.out.println(json);
    }
}
