# frozen_string_literal: true

module EventMachine
  module FastFileReader
    # Reads parts of a file.
    class Mapper
      attr_reader :size

      def initialize(path)
        @file = File.open(path, 'rb')
        @size = @file.size
      end

      def get_chunk(position, length)
        raise RangeError, "#{position}+#{length} is not in a file of #{@size} bytes" if position.negative? || length.negative? || position + length > @size

        length.zero? ? '' : @file.pread(length, position)
      end

      def close
        @file.close
      end
    end
  end
end
