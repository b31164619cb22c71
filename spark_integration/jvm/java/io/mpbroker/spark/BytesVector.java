package io.mpbroker.spark;

import java.util.Arrays;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** Holds the addresses of keys or values, which are copied only when a query asks for them. */
final class BytesVector extends ColumnVector {
  private long[] addresses;
  private int[] lengths;
  private int nulls;

  BytesVector(int rows) {
    super(DataTypes.BinaryType);
    addresses = new long[rows];
    lengths = new int[rows];
  }

  void reset() {
    nulls = 0;
  }

  void reserve(int rows) {
    if (rows > lengths.length) {
      addresses = Arrays.copyOf(addresses, rows);
      lengths = Arrays.copyOf(lengths, rows);
    }
  }

  /** Sets the address and length of a row's bytes. A negative length means null. */
  void put(int row, long address, int length) {
    addresses[row] = address;
    lengths[row] = length;
    if (length < 0) {
      nulls++;
    }
  }

  @Override
  public void close() {}

  @Override
  public boolean hasNull() {
    return nulls > 0;
  }

  @Override
  public int numNulls() {
    return nulls;
  }

  @Override
  public boolean isNullAt(int row) {
    return lengths[row] < 0;
  }

  @Override
  public byte[] getBinary(int row) {
    int length = lengths[row];
    if (length < 0) {
      return null;
    }
    byte[] copy = new byte[length];
    Platform.copyMemory(null, addresses[row], copy, Platform.BYTE_ARRAY_OFFSET, length);
    return copy;
  }

  // Spark reads a binary column by none of these.

  @Override public boolean getBoolean(int row) { throw new UnsupportedOperationException(); }
  @Override public byte getByte(int row) { throw new UnsupportedOperationException(); }
  @Override public short getShort(int row) { throw new UnsupportedOperationException(); }
  @Override public int getInt(int row) { throw new UnsupportedOperationException(); }
  @Override public long getLong(int row) { throw new UnsupportedOperationException(); }
  @Override public float getFloat(int row) { throw new UnsupportedOperationException(); }
  @Override public double getDouble(int row) { throw new UnsupportedOperationException(); }
  @Override public ColumnarArray getArray(int row) { throw new UnsupportedOperationException(); }
  @Override public ColumnarMap getMap(int ordinal) { throw new UnsupportedOperationException(); }
  @Override public Decimal getDecimal(int row, int precision, int scale) { throw new UnsupportedOperationException(); }
  @Override public UTF8String getUTF8String(int row) { throw new UnsupportedOperationException(); }
  @Override public ColumnVector getChild(int ordinal) { throw new UnsupportedOperationException(); }
}
