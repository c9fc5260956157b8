# frozen_string_literal: true

require 'em/streamer'

module EventMachine
  # Sends what an io has, in pieces, as fast as the peer reads. It reads until the end, and closes nothing.
  class IOStreamer
    include Deferrable

    CHUNK_SIZE = 16_384

    def initialize(connection, io, opts = {})
      @connection = connection
      @io = io
      @http_chunks = opts[:http_chunks]
      @buffer = String.new(encoding: Encoding::BINARY)
      stream_one_chunk
    end

    private

    def stream_one_chunk
      loop do
        return fail if @connection.error? == true
        return EventMachine.next_tick { stream_one_chunk } if @connection.get_outbound_data_size > FileStreamer::BackpressureLevel
        return finish unless @io.read(CHUNK_SIZE, @buffer)

        @connection.send_data("#{@buffer.bytesize.to_s(16)}\r\n") if @http_chunks
        @connection.send_data(@buffer)
        @connection.send_data("\r\n") if @http_chunks
      end
    end

    def finish
      @connection.send_data("0\r\n\r\n") if @http_chunks
      succeed
    end
  end
end
