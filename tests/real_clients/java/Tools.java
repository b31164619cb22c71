import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.ByteArrayInputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Apache Kafka's command line tools one after the other in one JVM, as their scripts would each in one of
 * its own: with their arguments and standard input, up to their exit.
 *
 * A request on standard input is a number of words, the words (the class of the tool and its arguments, or first
 * properties of the JVM as in -Dname=value), a number of bytes and these bytes. The answer is the exit code, then what the tool wrote to standard output
 * and to standard error, each as a number of bytes and these bytes.
 */
public class Tools {
    private static final Captured OUT = new Captured();
    private static final Captured ERR = new Captured();
    private static final List<Runnable> HOOKS = new ArrayList<>();
    private static Integer code;

    /** Instead of the end of the JVM. */
    private static class Exited extends Error {
        Exited() {
            super("the tool exits", null, false, false);
        }
    }

    /** Loggers keep the stream that they find first, so there is one for all tools. */
    private static class Captured extends OutputStream {
        private ByteArrayOutputStream written = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int each) {
            written.write(each);
        }

        @Override
        public synchronized void write(byte[] bytes, int from, int count) {
            written.write(bytes, from, count);
        }

        synchronized byte[] take() {
            byte[] taken = written.toByteArray();
            written = new ByteArrayOutputStream();
            return taken;
        }
    }

    public static void main(String[] none) throws IOException {
        DataInputStream requests = new DataInputStream(System.in);
        DataOutputStream answers = new DataOutputStream(System.out);
        System.setOut(new PrintStream(OUT, true));
        System.setErr(new PrintStream(ERR, true));
        Exit.setExitProcedure((status, message) -> exit(status));
        Exit.setHaltProcedure((status, message) -> exit(status));
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        while (true) {
            String[] words;
            try {
                words = new String[requests.readInt()];
            } catch (EOFException end) {
                System.exit(0);
                return;
            }
            for (int each = 0; each < words.length; each++) {
                words[each] = new String(requests.readNBytes(requests.readInt()), "UTF-8");
            }
            System.setIn(new ByteArrayInputStream(requests.readNBytes(requests.readInt())));
            int ended = run(words);
            System.out.flush();
            System.err.flush();
            answers.writeInt(ended);
            for (Captured each : new Captured[] {OUT, ERR}) {
                byte[] written = each.take();
                answers.writeInt(written.length);
                answers.write(written);
            }
            answers.flush();
        }
    }

    /** What a tool makes of its own exit comes after it, and does not count. */
    private static void exit(int status) {
        if (code == null) {
            code = status;
        }
        throw new Exited();
    }

    private static int run(String[] words) {
        code = null;
        while (words[0].startsWith("-D")) {
            String[] property = words[0].substring(2).split("=", 2);
            System.setProperty(property[0], property[1]);
            words = Arrays.copyOfRange(words, 1, words.length);
        }
        String[] arguments = Arrays.copyOfRange(words, 1, words.length);
        try {
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Exited)) {
                error.getCause().printStackTrace();
                code = code == null ? Integer.valueOf(1) : code;
            }
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            code = 1;
        }
        List<Runnable> hooks = new ArrayList<>(HOOKS);
        HOOKS.clear();
        for (Runnable hook : hooks) {
            try {
                hook.run();
            } catch (RuntimeException | Exited error) {
                error.printStackTrace();
            }
        }
        return code == null ? 0 : code;
    }
}
