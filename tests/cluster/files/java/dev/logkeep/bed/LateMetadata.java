package dev.logkeep.bed;

import java.util.List;
import java.util.Map;

import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.LoggerContext;
import org.apache.logging.log4j.core.config.LoggerConfig;
import org.apache.logging.log4j.core.filter.AbstractFilter;

/**
 * Lets a broker learn late what its controller has decided, as on a machine that is busy: topics, configurations, leaders, rights, quotas.
 * The broker takes them over when a period of `late.ms` milliseconds has passed, and brokers of one cluster not at the same time. It is a
 * reporter of metrics because a broker loads one, and holds the broker up where that writes into its log that news have come.
 */
public final class LateMetadata implements MetricsReporter {
    private static final String LOADER = "org.apache.kafka.image.loader.MetadataLoader";
    private static final String NEWS = "publishing new image";
    private static final long OPEN_MS = 50;

    @Override
    public void configure(Map<String, ?> configs) {
        LoggerContext context = (LoggerContext) LogManager.getContext(false);
        if (context.getConfiguration().getLoggers().containsKey(LOADER)) {
            return;
        }
        long period = Long.parseLong(configs.get("late.ms").toString());
        long shift = Long.parseLong(configs.get("node.id").toString()) * period / 3;
        LoggerConfig logger = new LoggerConfig(LOADER, Level.DEBUG, true);
        logger.addFilter(new AbstractFilter() {
            @Override
            public Result filter(LogEvent event) {
                if (event.getMessage().getFormat().contains(NEWS)) {
                    hold((System.currentTimeMillis() + shift) % period, period);
                }
                return event.getLevel().isMoreSpecificThan(Level.INFO) ? Result.NEUTRAL : Result.DENY;
            }
        });
        context.getConfiguration().addLogger(LOADER, logger);
        context.updateLoggers();
    }

    private static void hold(long passed, long period) {
        if (passed > OPEN_MS) {
            try {
                Thread.sleep(period - passed);
            } catch (InterruptedException end) {
                Thread.currentThread().interrupt();
            }
        }
    }

    @Override
    public void init(List<KafkaMetric> metrics) {
    }

    @Override
    public void metricChange(KafkaMetric metric) {
    }

    @Override
    public void metricRemoval(KafkaMetric metric) {
    }

    @Override
    public void close() {
    }
}
