package dev.logkeep.bed;

import java.util.Map;

import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.AlterConfigPolicy;

/** The policy of a cluster whose topics must delete old records: no other cleanup policy can be set. */
public final class OnlyDelete implements AlterConfigPolicy {
    @Override
    public void validate(RequestMetadata request) {
        String policy = request.configs().get("cleanup.policy");
        if (policy != null && !policy.equals("delete")) {
            throw new PolicyViolationException("topics of this cluster must have cleanup.policy=delete");
        }
    }

    @Override
    public void configure(Map<String, ?> configs) {
    }

    @Override
    public void close() {
    }
}
