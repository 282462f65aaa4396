package dev.logkeep.bed;

import java.util.Comparator;
import java.util.Optional;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.replica.ClientMetadata;
import org.apache.kafka.common.replica.PartitionView;
import org.apache.kafka.common.replica.ReplicaSelector;
import org.apache.kafka.common.replica.ReplicaView;

/** Sends every reader to a follower, the in-sync one with the lowest id, whatever the reader says of its rack. */
public final class FollowerSelector implements ReplicaSelector {
    @Override
    public Optional<ReplicaView> select(TopicPartition where, ClientMetadata reader, PartitionView partition) {
        return partition.replicas().stream()
            .filter(replica -> !replica.equals(partition.leader()))
            .min(Comparator.comparingInt(replica -> replica.endpoint().id()));
    }
}
