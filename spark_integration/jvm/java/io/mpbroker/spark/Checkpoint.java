package io.mpbroker.spark;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Reads the checkpoint of a query. (Spark: CommitLog, OffsetSeqLog.) */
record Checkpoint(String sourceDirectory, Configuration configuration) {
  private static final String NO_OFFSET = "-";

  /** Returns the end of the last finished batch in this source; nothing if no batch was finished. */
  Optional<String> committed() {
    try {
      OptionalLong batch =
          Arrays.stream(files().listStatus(in("commits")))
              .map(file -> file.getPath().getName())
              .filter(name -> name.matches("[0-9]+"))
              .mapToLong(Long::parseLong)
              .max();
      return batch.isEmpty() ? Optional.empty() : end(batch.getAsLong());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Returns the end of a batch that was planned; nothing if there is none of this number. */
  Optional<String> end(long batch) {
    try (InputStream text = files().open(in("offsets/" + batch))) {
      List<String> lines = new String(text.readAllBytes(), StandardCharsets.UTF_8).lines().toList();
      return offset(lines, new Path(sourceDirectory).getName());
    } catch (FileNotFoundException error) {
      return Optional.empty();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Returns true if no batch was planned. */
  boolean isNew() {
    try {
      return files().listStatus(in("offsets")).length == 0;
    } catch (FileNotFoundException error) {
      return true;
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private FileSystem files() throws IOException {
    return new Path(sourceDirectory).getFileSystem(configuration);
  }

  /** Returns a path below the root. The directory of a source is sources/0, for example. */
  private Path in(String name) {
    return new Path(new Path(sourceDirectory).getParent().getParent(), name);
  }

  /** Finds the offset of a source below the version and the metadata: by its number, or in version 2 by its name. */
  private static Optional<String> offset(List<String> lines, String source) {
    String found = NO_OFFSET;
    if (lines.get(0).equals("v2")) {
      String prefix = source + ":";
      found =
          lines.stream()
              .skip(2)
              .filter(one -> one.startsWith(prefix))
              .findFirst()
              .map(one -> one.substring(prefix.length()))
              .orElse(NO_OFFSET);
    } else if (lines.get(0).equals("v1")) {
      found = lines.get(2 + Integer.parseInt(source));
    }
    return found.equals(NO_OFFSET) ? Optional.empty() : Optional.of(found);
  }
}
