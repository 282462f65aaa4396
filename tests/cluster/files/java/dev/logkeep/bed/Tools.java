package dev.logkeep.bed;

import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs one of Kafka's tools after the other, because a JVM takes longer to start than most of them take. A line of standard input names, with
 * tabs between them, a file for what the tool prints, a file for what it complains of, the tool's class and its arguments. The answer is a
 * line with the exit code.
 */
public final class Tools {
    public static void main(String[] none) throws IOException {
        PrintStream answers = System.out;
        Redirected out = new Redirected();
        Redirected err = new Redirected();
        // Scala and the log keep the streams that they find when they start.
        System.setOut(new PrintStream(out, false, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, false, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> {
            throw new Ended(code);
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            int code;
            try (OutputStream printed = file(words[0]); OutputStream complained = file(words[1])) {
                out.target = printed;
                err.target = complained;
                code = run(words[2], Arrays.copyOfRange(words, 3, words.length));
                System.out.flush();
                System.err.flush();
            }
            answers.println(code);
            answers.flush();
        }
    }

    private static OutputStream file(String path) throws IOException {
        return new BufferedOutputStream(new FileOutputStream(path));
    }

    private static int run(String tool, String[] arguments) {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException problem) {
            if (problem.getCause() instanceof Ended end) {
                return end.code;
            }
            problem.getCause().printStackTrace();
            return 1;
        } catch (ReflectiveOperationException problem) {
            problem.printStackTrace();
            return 1;
        }
    }

    private static final class Redirected extends OutputStream {
        private OutputStream target;

        @Override
        public void write(int octet) throws IOException {
            target.write(octet);
        }

        @Override
        public void write(byte[] octets, int start, int length) throws IOException {
            target.write(octets, start, length);
        }

        @Override
        public void flush() throws IOException {
            target.flush();
        }
    }

    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1;
        private final int code;

        private Ended(int code) {
            this.code = code;
        }
    }
}
