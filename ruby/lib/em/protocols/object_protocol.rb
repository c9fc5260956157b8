# frozen_string_literal: true

module EventMachine
  module Protocols
    # Sends and receives objects, each after its length. By default they are marshalled, which lets a peer make objects of any class:
    # between programs that do not trust each other, define `serializer` as something else, such as JSON.
    module ObjectProtocol
      # The longest object that is received. A longer one is an error.
      MaxObjectLength = 64 * 1024 * 1024

      # Responds to `dump` and `load`.
      def serializer
        Marshal
      end

      def receive_data(data)
        (@object_input ||= String.new(encoding: Encoding::BINARY)) << data
        while @object_input.bytesize >= 4
          length = @object_input.unpack1('N')
          raise ArgumentError, "an object of #{length} bytes is too long" if length > MaxObjectLength
          break if @object_input.bytesize < length + 4

          receive_object(serializer.load(@object_input.slice!(0, length + 4)[4..]))
        end
      end

      def receive_object(_object); end

      def send_object(object)
        dumped = serializer.dump(object)
        send_data([dumped.bytesize].pack('N') + dumped.b)
      end
    end
  end
end
